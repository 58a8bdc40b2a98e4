//! Which device a run computes on.

use crate::error::Error;

/// A device that this program can compute on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The processor.
    Cpu,
}

impl Device {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
        }
    }

    /// The device that `auto`, `cpu`, `cuda` or `cuda:N` names.
    ///
    /// # Errors
    ///
    /// A device that is not there, and a name that is none of these.
    pub fn choose(name: &str) -> Result<Self, Error> {
        let missing = |reason: &str| {
            Err(Error::DeviceMissing { device: name.to_owned(), reason: reason.to_owned() })
        };
        match name.split_once(':').unwrap_or((name, "0")) {
            ("auto" | "cpu", "0") => Ok(Self::Cpu),
            ("cuda", number) if number.parse::<u32>().is_ok() => {
                missing("this version computes on the CPU only; use cpu or auto")
            }
            _ => Err(Error::WrongValue {
                key: "run.device".into(),
                place: "device".into(),
                expected: "auto, cpu, cuda or cuda:N".into(),
                found: name.to_owned(),
            }),
        }
    }
}
