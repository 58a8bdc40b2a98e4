//! What a CUDA optimizer can be told besides what every optimizer is.

use formats::Format;
use gpu_kernels::{GradientType, Kind, ParameterType, Shape};

use crate::{Error, TensorSpec};

/// What the parameters and the gradients of a tensor are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorTypes {
    /// The parameters.
    pub parameters: ParameterType,
    /// The gradients.
    pub gradients: GradientType,
}

/// How a CUDA optimizer is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaSettings {
    /// The types of every tensor; none at all means f32 throughout.
    pub types: Vec<TensorTypes>,
    /// Whether tensors lie anywhere, instead of one after the other.
    pub is_placed: bool,
    /// Whether the gradient norm is reported also without clipping. It costs a read of the
    /// gradients; without it the report says NaN.
    pub measures_norm: bool,
    /// How the update is launched.
    pub shape: Shape,
}

impl Default for CudaSettings {
    fn default() -> CudaSettings {
        CudaSettings {
            types: Vec::new(),
            is_placed: false,
            measures_norm: true,
            shape: Shape::default(),
        }
    }
}

impl TensorTypes {
    /// f32 parameters and gradients.
    pub const F32: TensorTypes =
        TensorTypes { parameters: ParameterType::F32, gradients: GradientType::F32 };

    /// The kind of a tensor whose moments persist in `format`.
    pub(super) fn kind(self, format: Format) -> Kind {
        Kind { format, parameters: self.parameters, gradients: self.gradients }
    }
}

impl CudaSettings {
    /// The types of every tensor.
    pub(super) fn types_of(&self, tensors: &[TensorSpec]) -> Result<Vec<TensorTypes>, Error> {
        match self.types.len() {
            0 => Ok(vec![TensorTypes::F32; tensors.len()]),
            found if found == tensors.len() => Ok(self.types.clone()),
            found => {
                let (buffer, expected) = ("types", tensors.len());
                Err(Error::SliceCount { buffer, expected, found })
            }
        }
    }
}
