//! A page of headings, text, tables and pictures, as Markdown and as HTML that needs no other file.

use std::fmt::Write as _;

/// A part of a page.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// A heading of a section.
    Heading(String),
    /// A paragraph.
    Text(String),
    /// A table; every column but the first is aligned to the right.
    Table {
        /// The names of the columns.
        head: Vec<String>,
        /// The rows, as wide as the head.
        rows: Vec<Vec<String>>,
    },
    /// A picture that lies beside the page.
    Picture {
        /// The file's name, without its extension.
        name: String,
        /// What can be seen in it.
        caption: String,
        /// The text of its SVG.
        svg: String,
    },
    /// Commands, one a line.
    Commands(Vec<String>),
}

impl Block {
    /// A table of a fixed head.
    #[must_use]
    pub fn table(head: &[&str], rows: Vec<Vec<String>>) -> Self {
        Self::Table { head: head.iter().map(|&name| name.to_owned()).collect(), rows }
    }
}

/// A page.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// Its title.
    pub title: String,
    /// What stands on it.
    pub blocks: Vec<Block>,
}

impl Page {
    /// The page as Markdown. Pictures are links to their PNG.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut text = format!("# {}\n", self.title);
        for block in &self.blocks {
            text.push('\n');
            // Writing to a text cannot fail.
            let _ = match block {
                Block::Heading(heading) => writeln!(text, "## {heading}"),
                Block::Text(paragraph) => writeln!(text, "{paragraph}"),
                Block::Table { head, rows } => markdown_table(&mut text, head, rows),
                Block::Picture { name, caption, .. } => {
                    writeln!(text, "![{caption}]({name}.png)\n\n{caption}")
                }
                Block::Commands(lines) => writeln!(text, "```text\n{}\n```", lines.join("\n")),
            };
        }
        text
    }

    /// The page as HTML, its pictures within it.
    #[must_use]
    pub fn to_html(&self) -> String {
        let title = escaped(&self.title);
        let mut text = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
             content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
             </head>\n<body>\n<h1>{title}</h1>\n"
        );
        for block in &self.blocks {
            let _ = match block {
                Block::Heading(heading) => writeln!(text, "<h2>{}</h2>", escaped(heading)),
                Block::Text(paragraph) => writeln!(text, "<p>{}</p>", escaped(paragraph)),
                Block::Table { head, rows } => html_table(&mut text, head, rows),
                Block::Picture { caption, svg, .. } => writeln!(
                    text,
                    "<figure>\n{}\n<figcaption>{}</figcaption>\n</figure>",
                    svg.trim(),
                    escaped(caption)
                ),
                Block::Commands(lines) => {
                    writeln!(text, "<pre>{}</pre>", escaped(&lines.join("\n")))
                }
            };
        }
        text.push_str("</body>\n</html>\n");
        text
    }
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;color:#282828;background:#fff;max-width:70rem;\
margin:2rem auto;padding:0 1rem}table{border-collapse:collapse;display:block;overflow-x:auto;font-size:14px}\
th,td{padding:.3rem .7rem;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}\
th:first-child,td:first-child{text-align:left}thead th{border-bottom:2px solid #888}\
pre{background:#f4f4f4;padding:.8rem;overflow-x:auto;font-size:13px}figure{margin:1.5rem 0}\
figcaption{font-size:14px;color:#555}svg{max-width:100%;height:auto}";

fn markdown_table(text: &mut String, head: &[String], rows: &[Vec<String>]) -> std::fmt::Result {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |", cells.join(" | "))
    };
    writeln!(text, "{}\n|---|{}", line(head), "--:|".repeat(head.len() - 1))?;
    rows.iter().try_for_each(|row| writeln!(text, "{}", line(row)))
}

fn html_table(text: &mut String, head: &[String], rows: &[Vec<String>]) -> std::fmt::Result {
    let cells = |cells: &[String], tag: &str| {
        let cell = |cell: &String| format!("<{tag}>{}</{tag}>", escaped(cell));
        cells.iter().map(cell).collect::<String>()
    };
    writeln!(text, "<table>\n<thead><tr>{}</tr></thead>\n<tbody>", cells(head, "th"))?;
    rows.iter().try_for_each(|row| writeln!(text, "<tr>{}</tr>", cells(row, "td")))?;
    writeln!(text, "</tbody>\n</table>")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        Page {
            title: "A < B".into(),
            blocks: vec![
                Block::Heading("Losses".into()),
                Block::table(&["run", "loss"], vec![vec!["a|b".into(), "1.5".into()]]),
                Block::Picture {
                    name: "curves".into(),
                    caption: "Loss & time.".into(),
                    svg: "<svg></svg>\n".into(),
                },
                Block::Commands(vec!["packed-adamw train".into()]),
            ],
        }
    }

    #[test]
    fn markdown_has_what_the_page_has() {
        let expected = "# A < B\n\n## Losses\n\n| run | loss |\n|---|--:|\n| a\\|b | 1.5 |\n\n\
                        ![Loss & time.](curves.png)\n\nLoss & time.\n\n```text\npacked-adamw train\n```\n";
        assert_eq!(page().to_markdown(), expected);
    }

    #[test]
    fn html_needs_no_other_file() {
        let html = page().to_html();
        assert!(html.contains("<h1>A &lt; B</h1>") && html.contains("<td>a|b</td>"), "{html}");
        assert!(html.contains("<figure>\n<svg></svg>\n<figcaption>Loss &amp; time."), "{html}");
        assert!(!html.contains("src=") && !html.contains("href="), "{html}");
    }
}
