//! A page as Markdown and as HTML.

use super::{Block, Page};

/// All of the look: readable anywhere, light or dark, nothing loaded.
const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:16px/1.55 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}\
table{border-collapse:collapse;margin:1rem 0;width:100%}\
td,th{border-bottom:1px solid #8884;padding:.35rem .6rem;text-align:left;vertical-align:top}\
code,pre{font:0.88em/1.5 ui-monospace,monospace;overflow-wrap:anywhere}\
pre{background:#8881;padding:.8rem;overflow-x:auto;overflow-wrap:normal}";

impl Page {
    /// The page as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n", self.title);
        for block in &self.blocks {
            text.push('\n');
            match block {
                Block::Heading(heading) => text.push_str(&format!("## {heading}\n")),
                Block::Paragraph(paragraph) => text.push_str(&format!("{paragraph}\n")),
                Block::List(items) => {
                    text.extend(items.iter().map(|item| format!("- {item}\n")));
                }
                Block::Table { head, rows } => {
                    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
                    let escaped = |row: &Vec<String>| {
                        row.iter().map(|cell| cell.replace('|', "\\|")).collect()
                    };
                    text.push_str(&line(head.iter().map(|&cell| cell.to_owned()).collect()));
                    text.push_str(&format!("|{}\n", "---|".repeat(head.len())));
                    text.extend(rows.iter().map(escaped).map(line));
                }
                Block::Code(code) => text.push_str(&format!("```text\n{code}\n```\n")),
            }
        }
        text
    }

    /// The page as HTML that needs no other file.
    pub fn html(&self) -> String {
        let mut text = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
             <style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n",
            title = escaped(&self.title)
        );
        for block in &self.blocks {
            match block {
                Block::Heading(heading) => {
                    text.push_str(&format!("<h2>{}</h2>\n", inline(heading)));
                }
                Block::Paragraph(paragraph) => {
                    text.push_str(&format!("<p>{}</p>\n", inline(paragraph)));
                }
                Block::List(items) => {
                    text.push_str("<ul>\n");
                    text.extend(items.iter().map(|item| format!("<li>{}</li>\n", inline(item))));
                    text.push_str("</ul>\n");
                }
                Block::Table { head, rows } => {
                    text.push_str("<table>\n");
                    if head.iter().any(|cell| !cell.is_empty()) {
                        text.push_str(&row("th", head.iter().copied()));
                    }
                    text.extend(
                        rows.iter().map(|cells| row("td", cells.iter().map(String::as_str))),
                    );
                    text.push_str("</table>\n");
                }
                Block::Code(code) => text.push_str(&format!("<pre>{}</pre>\n", escaped(code))),
            }
        }
        text + "</body>\n</html>\n"
    }
}

fn row<'a>(cell: &str, cells: impl Iterator<Item = &'a str>) -> String {
    let cells: String = cells.map(|text| format!("<{cell}>{}</{cell}>", inline(text))).collect();
    format!("<tr>{cells}</tr>\n")
}

/// Text with `code` set as such.
fn inline(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let set = |(index, part): (usize, &str)| {
        if index % 2 == 1 { format!("<code>{}</code>", escaped(part)) } else { escaped(part) }
    };
    parts.map(set).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
