//! Which device a run computes on, and in which precision.

use std::fmt;

use gpu_kernels::{Gpu, Precision};
use model::Cuda;

use crate::error::Error;
use crate::world::Local;

/// A device that this program can compute on.
#[derive(Clone)]
pub enum Device {
    /// The processor, in fp32.
    Cpu,
    /// A CUDA device.
    Cuda(Cuda),
}

impl Device {
    /// The device that `auto`, `cpu`, `cuda` or `cuda:N` names: `auto` is the first CUDA device, or the
    /// processor where there is none. Without a precision it is bf16 on a CUDA device and fp32 on the
    /// processor.
    ///
    /// # Errors
    ///
    /// A device that is not there, a name that is none of these, and a precision that the device does not have.
    pub fn choose(name: &str, precision: Option<Precision>) -> Result<Self, Error> {
        let wrong = |key: &str, expected: &str, found: &str| Error::WrongValue {
            key: key.into(),
            place: "device".into(),
            expected: expected.into(),
            found: found.to_owned(),
        };
        let ordinal = match name {
            "auto" if Gpu::count().unwrap_or(0) > 0 => Some(0),
            "auto" | "cpu" => None,
            "cuda" => Some(0),
            _ => match name.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(ordinal)) => Some(ordinal),
                _ => return Err(wrong("run.device", "auto, cpu, cuda or cuda:N", name)),
            },
        };
        let Some(ordinal) = ordinal else {
            return match precision {
                None | Some(Precision::Fp32) => Ok(Self::Cpu),
                Some(other) => {
                    let expected = "fp32 or auto on the processor";
                    Err(wrong("run.precision", expected, other.name()))
                }
            };
        };
        let gpu = Gpu::open(ordinal).map_err(|error| Error::DeviceMissing {
            device: name.to_owned(),
            reason: error.to_string(),
        })?;
        Self::on(&gpu, precision.unwrap_or(Precision::Bf16))
    }

    /// The device of a rank, as [`Device::choose`] where it is alone on its host: of several there, each takes the CUDA
    /// device of its own number.
    ///
    /// # Errors
    ///
    /// As for [`Device::choose`]; more ranks on a host than devices, and one device that is named for several ranks.
    pub fn choose_local(
        name: &str,
        precision: Option<Precision>,
        local: Local,
    ) -> Result<Self, Error> {
        let Local { rank, world_size } = local;
        if world_size == Some(1) || name == "cpu" {
            return Self::choose(name, precision);
        }
        let devices = Gpu::count().unwrap_or(0);
        if name == "auto" && devices == 0 {
            return Self::choose("cpu", precision);
        }
        let missing =
            |reason: String| Err(Error::DeviceMissing { device: name.to_owned(), reason });
        if name.starts_with("cuda:") {
            return missing("it is one device, and this host has several ranks; use cuda".into());
        }
        let ranks = world_size.unwrap_or(rank + 1).max(rank + 1);
        if ranks > devices {
            return missing(format!("this host has {ranks} ranks and {devices} CUDA devices"));
        }
        Self::choose(&format!("cuda:{rank}"), precision)
    }

    /// A CUDA device that is open, in a precision.
    ///
    /// # Errors
    ///
    /// What the device refuses.
    pub fn on(gpu: &Gpu, precision: Precision) -> Result<Self, Error> {
        Ok(Self::Cuda(Cuda::new(gpu, precision)?))
    }

    /// Its name in reports.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Cpu => "cpu".to_owned(),
            Self::Cuda(cuda) => format!("cuda:{}", cuda.gpu().facts().ordinal),
        }
    }

    /// The precision of its matrix products.
    #[must_use]
    pub fn precision(&self) -> Precision {
        match self {
            Self::Cpu => Precision::Fp32,
            Self::Cuda(cuda) => cuda.precision(),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.name(), self.precision().name())
    }
}
