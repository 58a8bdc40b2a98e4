//! `shadow.jsonl` read back, and what its rows say over the later half of a run.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tape::aside::write_file;

use super::{ALL, ShadowRow};
use crate::error::Error;
use crate::statistics::mean;

/// Means of the rows of a shadow and a role over the later half of the gradients that it was fed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShadowSummary {
    /// The shadow.
    pub format: String,
    /// The role.
    pub role: String,
    /// Rows that the means are of.
    pub rows: usize,
    /// Means of the fields of the same name in [`ShadowRow`].
    pub means: ShadowRow,
}

/// Reads the rows of a file. A last line without its newline was cut and is dropped.
///
/// # Errors
///
/// A file that cannot be read, or a whole line that is no row.
pub fn read(path: &Path) -> Result<Vec<ShadowRow>, Error> {
    let text = crate::read::own_text(path).map_err(Error::io("read", path))?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let row = |(index, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| Error::Damaged {
            file: path.to_owned(),
            line: index + 1,
            message: error.to_string(),
            remedy: "take the line out; its rows are lost",
        })
    };
    whole.lines().enumerate().map(row).collect()
}

/// Drops the rows of updates after `update`, which a run that goes on makes again.
pub fn drop_after(path: &Path, update: u64) -> Result<(), Error> {
    if !path.exists() {
        return Ok(());
    }
    let kept = read(path)?.into_iter().filter(|row| row.update <= update);
    let line = |row: ShadowRow| serde_json::to_string(&row).expect("a row is plain data") + "\n";
    Ok(write_file(path, kept.map(line).collect::<String>().as_bytes())?)
}

/// A summary for every shadow and role, in the order in which they come, all tensors together first.
#[must_use]
pub fn summaries(rows: &[ShadowRow]) -> Vec<ShadowSummary> {
    let last = rows.iter().map(|row| row.update).max().unwrap_or(0);
    let later: Vec<&ShadowRow> = rows.iter().filter(|row| row.update * 2 > last).collect();
    let mut keys: Vec<(&str, &str)> = Vec::new();
    for row in &later {
        let key = (row.format.as_str(), row.role.as_str());
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.sort_by_key(|(_, role)| *role != ALL);
    let summary = |(format, role): (&str, &str)| {
        let mine: Vec<&ShadowRow> =
            later.iter().copied().filter(|row| row.format == format && row.role == role).collect();
        let of = |field: fn(&ShadowRow) -> f64| {
            mean(&mine.iter().map(|row| field(row)).collect::<Vec<_>>())
        };
        let of_some = |field: fn(&ShadowRow) -> Option<f64>| {
            let values: Vec<f64> = mine.iter().filter_map(|row| field(row)).collect();
            (!values.is_empty()).then(|| mean(&values))
        };
        let newest = mine.last().expect("a key comes of a row");
        ShadowSummary {
            format: format.to_owned(),
            role: role.to_owned(),
            rows: mine.len(),
            means: ShadowRow {
                update: newest.update,
                fed: newest.fed,
                format: format.to_owned(),
                role: role.to_owned(),
                elements: newest.elements,
                direction_error: of(|row| row.direction_error),
                direction_cosine: of(|row| row.direction_cosine),
                m_error: of(|row| row.m_error),
                r_error: of(|row| row.r_error),
                r_drift: of(|row| row.r_drift),
                subnormal_m: of_some(|row| row.subnormal_m),
                subnormal_r: of_some(|row| row.subnormal_r),
                saturated_m: of_some(|row| row.saturated_m),
                saturated_r: of_some(|row| row.saturated_r),
                stalled_m: of(|row| row.stalled_m),
                stalled_r: of(|row| row.stalled_r),
            },
        }
    };
    keys.into_iter().map(summary).collect()
}
