//! Reading whole files of others, and our own, which may have become anything since they were written.
//!
//! A pipe or a device in the place of a file would be waited for, or read, without end: what must be a file is looked at
//! before it is opened, and text that may come from elsewhere is read up to a bound.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

pub use tape::disk::open_file as open;

/// Bytes of a text at most: of settings, a manifest or a summary, which seldom have a thousandth of it.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// All of a file.
pub fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// All of a text that this program wrote into a folder of its own.
///
/// # Errors
///
/// What the file system refuses, what is no file, text that is not UTF-8, and more than 64 MiB.
pub fn own_text(path: &Path) -> io::Result<String> {
    bounded(open(path)?)
}

/// All of a text that a user names, which may come from a pipe.
///
/// # Errors
///
/// What the file system refuses, text that is not UTF-8, and more than 64 MiB.
pub fn text(path: &Path) -> io::Result<String> {
    bounded(File::open(path)?)
}

fn bounded(file: File) -> io::Result<String> {
    let mut text = String::new();
    let length = file.take(TEXT_BYTES_MAX + 1).read_to_string(&mut text)? as u64;
    if length > TEXT_BYTES_MAX {
        let message = format!("expected text of at most {TEXT_BYTES_MAX} bytes, found more");
        return Err(io::Error::other(message));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_files_are_opened_and_only_so_much_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "words").unwrap();
        assert_eq!(
            (bytes(&path).unwrap(), text(&path).unwrap()),
            (b"words".to_vec(), "words".into())
        );
        assert_eq!(own_text(&path).unwrap(), "words");
        let error = own_text(folder.path()).unwrap_err().to_string();
        assert_eq!(error, "expected a file, found a folder");
        assert!(text(folder.path()).is_err());
        fs::write(&path, [0xff]).unwrap();
        assert!(text(&path).is_err() && own_text(&path).is_err());
        assert_eq!(
            bytes(&folder.path().join("absent")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[cfg(unix)]
    #[test]
    fn what_never_ends_is_not_waited_for() {
        let zeros = Path::new("/dev/zero");
        let error = bytes(zeros).unwrap_err().to_string();
        assert_eq!(error, "expected a file, found a device or a pipe");
        assert!(own_text(zeros).is_err());
        assert!(text(zeros).unwrap_err().to_string().starts_with("expected text of at most"));
        assert_eq!(text(Path::new("/dev/null")).unwrap(), "");
    }
}
