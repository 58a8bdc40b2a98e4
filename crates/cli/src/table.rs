//! Tables whose columns align.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};

/// One line under the head and no others.
const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// A table with a head; every column but the first is aligned to the right.
pub fn columns(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(STYLE).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head);
    for row in rows {
        table.add_row(row);
    }
    for index in 1..head.len() {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// Lines of a name and a value, the values aligned.
pub fn pairs(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| format!("  {name:<width$}  {value}");
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}
