//! The copy of parameters in bf16 that an update writes beside them, where products read one.

use crate::buffer::{check_device, check_length};
use crate::kind::{BlockOptions, ParameterType};
use crate::programs::Pass;
use crate::{Buffer, Error, FusedAdamW, load};

impl FusedAdamW {
    /// Has every update also write the parameters, rounded to bf16 (to nearest, ties to even), to `copies`; where
    /// an element keeps its parameter, its copy is kept or written anew. `None` ends that.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherDevice`], [`Error::OtherType`] unless all parameters are f32, and what the
    /// compiler refuses of the kernel that also copies.
    ///
    /// # Panics
    ///
    /// If the tensors lie anywhere.
    pub fn set_copies(&mut self, copies: Option<Buffer<u16>>) -> Result<(), Error> {
        if let Some(copies) = &copies {
            assert!(!self.layout.is_placed, "the tensors of this model lie anywhere");
            check_length("copies of parameters", self.layout.elements, copies.len())?;
            check_device("copies of parameters", &self.gpu, copies.gpu())?;
            if self.layout.kinds.iter().any(|kind| kind.parameters != ParameterType::F32) {
                let (expected, found) = ("f32", ParameterType::Split.name());
                return Err(Error::OtherType {
                    what: "parameters that are copied",
                    expected,
                    found,
                });
            }
        }
        if copies.is_some() != self.copies.is_some() {
            let pass = if copies.is_some() { Pass::Copy } else { Pass::Update };
            let (options, passes) =
                (BlockOptions::of(&self.layout.kinds)?, self.options.passes(pass));
            let shape = self.options.shape;
            let (kernels, argument) =
                load::kernels(&self.gpu, &self.layout, options, shape, &passes, &[])?;
            let mut kernels = kernels.into_iter();
            self.update = kernels.next().expect("every pass has a kernel");
            (self.check, self.argument) = (kernels.next(), argument);
        }
        self.copies = copies;
        Ok(())
    }
}
