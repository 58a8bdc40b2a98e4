//! Whether an archive and its list of hashes agree, and whether making it again gives the same bytes.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};

use super::{File, Files, MANIFEST, read, refusal, sha256, write};

/// The files of an archive, when it is what [`write()`] makes of them.
pub fn verified(bytes: &[u8]) -> Result<Files> {
    let mut entries = read(bytes)?;
    let (_, list) = entries.remove(0);
    ensure!(!list.executable, "{MANIFEST}: executable");
    let listed = listed(&list)?;
    let files: Files = entries.into_iter().collect();
    let mut faults = Vec::new();
    for (path, file) in &files {
        let found = sha256(&file.bytes);
        match listed.get(path.as_str()) {
            None => faults.push(format!("{path}: extra: not in {MANIFEST}")),
            Some(expected) if *expected != found => {
                faults.push(format!("{path}: changed: SHA-256 {found}, listed {expected}"));
            }
            Some(_) => {}
        }
    }
    let missing = listed.keys().filter(|path| !files.contains_key(**path));
    faults.extend(missing.map(|path| format!("{path}: missing: listed in {MANIFEST}")));
    if !faults.is_empty() {
        bail!("{} faults\n{}", faults.len(), faults.join("\n"));
    }
    let again = write(&files);
    if again != bytes {
        let same = again.iter().zip(bytes).take_while(|(a, b)| a == b).count();
        bail!("made again it differs from byte {same} on ({} bytes, {})", again.len(), bytes.len());
    }
    Ok(files)
}

/// Paths and hashes of the list.
fn listed(list: &File) -> Result<BTreeMap<&str, &str>> {
    let text = std::str::from_utf8(&list.bytes).context(MANIFEST)?;
    let mut listed = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let place = format!("{MANIFEST} line {}", index + 1);
        let Some((hash, path)) = line.split_once("  ") else {
            bail!("{place}: expected a hash, two spaces and a path, found {line:?}");
        };
        ensure!(
            hash.len() == 64 && hash.bytes().all(|digit| b"0123456789abcdef".contains(&digit)),
            "{place}: {hash:?} is no SHA-256"
        );
        if let Some(refusal) = refusal(path) {
            bail!("{place}: {refusal}");
        }
        ensure!(listed.insert(path, hash).is_none(), "{place}: {path}: listed twice");
    }
    Ok(listed)
}
