//! Reads an archive that may be anybody's, and takes only what [`write`](super::write) makes.
//!
//! Nothing is unpacked to disk and nothing is allocated by what a field says: sizes are compared with the bytes
//! that are there, and entries must follow each other without gaps, so they cannot overlap.

use anyhow::{Result, bail, ensure};

use super::{
    BYTES_MAX, CENTRAL, DATE, END, FLAGS, File, LOCAL, STORED, TIME, VERSION_MADE, VERSION_NEEDED,
    names,
};

/// Bytes of the record at the end.
const END_BYTES: usize = 22;

/// The files of an archive in their order, the list of hashes included.
///
/// # Errors
///
/// Everything that [`write`](super::write) would not have made, by the name of the file where there is one.
pub fn read(archive: &[u8]) -> Result<Vec<(String, File)>> {
    ensure!(archive.len() as u64 <= BYTES_MAX, "more than {BYTES_MAX} bytes: no release");
    ensure!(archive.len() >= END_BYTES, "{} bytes: too short for a ZIP", archive.len());
    let directory_end = archive.len() - END_BYTES;
    let mut end = Cursor { bytes: archive, at: directory_end };
    ensure!(
        end.u32()? == END,
        "no end record in the last {END_BYTES} bytes: cut, no ZIP, or something follows it"
    );
    let fields = [end.u16()?, end.u16()?, end.u16()?, end.u16()?];
    let (size, start, comment) = (end.u32()? as usize, end.u32()? as usize, end.u16()?);
    let count = fields[2];
    ensure!(fields == [0, 0, count, count] && comment == 0, "several disks, or a comment");
    ensure!(
        start.checked_add(size) == Some(directory_end),
        "the directory is said to lie at {start} with {size} bytes, and it ends at {directory_end}"
    );
    let mut locals = Cursor { bytes: &archive[..start], at: 0 };
    let mut directory = Cursor { bytes: &archive[..directory_end], at: start };
    let mut files = Vec::new();
    for _ in 0..count {
        let listed = listed(&mut directory)?;
        let path = listed.path.clone();
        let file = located(&mut locals, listed).map_err(|error| error.context(path.clone()))?;
        files.push((path, file));
    }
    ensure!(directory.at == directory_end, "the directory holds more than its {count} entries");
    ensure!(locals.at == start, "{} bytes belong to no file", start - locals.at);
    in_order(&files)?;
    Ok(files)
}

/// A file as the directory tells of it.
struct Listed {
    path: String,
    executable: bool,
    /// The fields that both records share, as bytes.
    shared: [u8; SHARED_BYTES],
    crc32: u32,
    size: usize,
    offset: usize,
}

/// Bytes of the fields that both records share.
const SHARED_BYTES: usize = 26;

fn listed(directory: &mut Cursor<'_>) -> Result<Listed> {
    ensure!(directory.u32()? == CENTRAL, "the directory is cut or holds something else");
    let made = directory.u16()?;
    let shared: [u8; SHARED_BYTES] = directory.take(SHARED_BYTES)?.try_into()?;
    let mut fields = Cursor { bytes: &shared, at: 0 };
    let header = [fields.u16()?, fields.u16()?, fields.u16()?, fields.u16()?, fields.u16()?];
    let (crc32, packed, size) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let (path_bytes, extra) = (fields.u16()?, fields.u16()?);
    let rest = [directory.u16()?, directory.u16()?, directory.u16()?];
    let (attributes, offset) = (directory.u32()?, directory.u32()?);
    let name = directory.take(path_bytes.into())?;
    let Ok(path) = std::str::from_utf8(name).map(str::to_owned) else {
        bail!("{:?}: a name that is not UTF-8", String::from_utf8_lossy(name));
    };
    if let Some(refusal) = names::refusal(&path) {
        bail!(refusal);
    }
    let mode = attributes >> 16;
    match mode & 0o170_000 {
        0o120_000 => bail!("{path}: a symbolic link"),
        0o100_000 => {}
        _ => bail!("{path}: no regular file (mode {mode:o})"),
    }
    ensure!(
        header[2] == STORED && packed == size,
        "{path}: compressed ({packed} bytes that become {size}); a release only stores"
    );
    ensure!(
        header == [VERSION_NEEDED, FLAGS, STORED, TIME, DATE]
            && made == VERSION_MADE
            && attributes & 0xffff == 0
            && matches!(mode & 0o7777, 0o644 | 0o755),
        "{path}: flags, time or mode are not those of a release (mode {mode:o}, time {}, {})",
        header[3],
        header[4]
    );
    ensure!(extra == 0 && rest == [0; 3], "{path}: an extra field, a comment or another disk");
    let executable = mode & 0o100 != 0;
    Ok(Listed { path, executable, shared, crc32, size: size as usize, offset: offset as usize })
}

/// Takes the file itself, which must come next.
fn located(locals: &mut Cursor<'_>, listed: Listed) -> Result<File> {
    let Listed { path, executable, shared, crc32, size, offset } = listed;
    ensure!(
        offset == locals.at,
        "said to lie at {offset}, while the file before it ends at {}: overlapping or hidden bytes",
        locals.at
    );
    ensure!(locals.u32()? == LOCAL, "no file record where the directory says");
    ensure!(
        locals.take(SHARED_BYTES)? == shared && locals.take(path.len())? == path.as_bytes(),
        "its own record and the directory disagree"
    );
    let bytes = locals.take(size)?.to_vec();
    ensure!(crc32fast::hash(&bytes) == crc32, "its bytes were changed (CRC-32)");
    Ok(File { executable, bytes })
}

/// Duplicates, names that fall together, and another order than that of names with the list first.
fn in_order(files: &[(String, File)]) -> Result<()> {
    let mut paths: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    ensure!(
        paths.first() == Some(&super::MANIFEST),
        "the first file is {:?}, not {}",
        paths.first().unwrap_or(&"absent"),
        super::MANIFEST
    );
    paths.remove(0);
    let unordered = paths.windows(2).find(|pair| pair[0] > pair[1]).map(|pair| pair[1]);
    paths.push(super::MANIFEST);
    paths.sort_unstable();
    if let Some(pair) = paths.windows(2).find(|pair| pair[0] == pair[1]) {
        bail!("{}: twice in the archive", pair[0]);
    }
    if let Some(clash) = names::clashes(paths.iter().copied()).into_iter().next() {
        bail!(clash);
    }
    if let Some(path) = unordered {
        bail!("{path}: out of the order of names");
    }
    Ok(())
}

/// A place in bytes that gives no more than there is.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(taken) = rest.get(..count) else {
            bail!("cut: {count} bytes wanted at {}, {} there", self.at, rest.len());
        };
        self.at += count;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.take(2)?.try_into()?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into()?))
    }
}
