//! Names that files of an archive may have, so that unpacking it anywhere makes exactly these files.

use std::collections::BTreeMap;

/// Bytes a path may have.
const PATH_BYTES_MAX: usize = 240;

/// Names that mean devices on some systems, with any ending.
const DEVICES: [&str; 4] = ["con", "prn", "aux", "nul"];

/// Names that mean devices there when a digit follows.
const PORTS: [&str; 2] = ["com", "lpt"];

/// Why a path may not stand in an archive; none when it may.
pub fn refusal(path: &str) -> Option<String> {
    let because = |reason: &str| Some(format!("{path:?}: {reason}"));
    if path.is_empty() || path.len() > PATH_BYTES_MAX {
        return because("a path has 1 to 240 bytes");
    }
    if path.starts_with('/') || path.contains(':') {
        return because("an absolute path, or one with a drive");
    }
    if path.ends_with('/') {
        return because("a folder; only files are archived");
    }
    if path.contains('\\') || path.chars().any(|c| c.is_control() || "<>\"|?*".contains(c)) {
        return because("a character that is no part of a name everywhere");
    }
    for name in path.split('/') {
        let stem = name.split('.').next().unwrap_or(name).to_lowercase();
        let port = stem.trim_end_matches(|c: char| c.is_ascii_digit());
        let is_device = DEVICES.contains(&&*stem) || port != stem && PORTS.contains(&port);
        match name {
            ".." => return because("leads out of the folder it is unpacked into (`..`)"),
            "" | "." => return because("an empty part, or `.`"),
            _ if name.ends_with(['.', ' ']) => {
                return because("a part that ends in `.` or a space");
            }
            _ if is_device => return because("the name of a device on some systems"),
            _ => {}
        }
    }
    None
}

/// Paths of which only one can exist where names are compared without case, or that need one name to be a
/// file and a folder.
pub fn clashes<'a>(paths: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
    let mut seen: BTreeMap<String, (&str, bool)> = BTreeMap::new();
    let mut faults = Vec::new();
    for path in paths {
        let ends = path.match_indices('/').map(|(end, _)| (end, false));
        for (end, is_file) in ends.chain([(path.len(), true)]) {
            let part = &path[..end];
            let &mut (other, other_is_file) =
                seen.entry(part.to_lowercase()).or_insert((part, is_file));
            if other != part {
                faults.push(format!("{path:?}: differs from {other:?} in case only"));
                break;
            }
            if other_is_file != is_file {
                faults.push(format!("{part:?}: both a file and a folder"));
                break;
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_folder_or_mean_something_else_are_refused() {
        for path in [
            "",
            "/etc/passwd",
            "../up",
            "a/../../up",
            "a/..",
            "a//b",
            "./a",
            "a/",
            "c:/x",
            "a\\b",
            "a\0b",
            "a\nb",
            "nul",
            "x/COM1.txt",
            "a./b",
            "a ",
            "what?",
        ] {
            assert!(refusal(path).is_some(), "{path:?}");
        }
        assert!(refusal(&"x".repeat(241)).is_some());
        for path in ["a", ".ci/run", "crates/a-b/src/x.rs", "..a/b..c", "console.rs", "é"] {
            assert_eq!(refusal(path), None);
        }
    }

    #[test]
    fn names_that_fall_together_are_found() {
        let faults = |paths: &[&'static str]| clashes(paths.iter().copied()).len();
        assert_eq!(faults(&["A.txt", "a.txt"]), 1);
        assert_eq!(faults(&["Docs/a", "docs/b"]), 1);
        assert_eq!(faults(&["a", "a/b"]), 1);
        assert_eq!(faults(&["É", "é"]), 1);
        assert_eq!(faults(&["a/b", "a/c", "a.b", "b"]), 0);
    }
}
