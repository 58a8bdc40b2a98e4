//! The entries of one parameter in a file, each with its type and its size checked.

use std::path::Path;

use formats::half_floats::{bf16_to_f32, binary16_to_f32};
use model::Slot;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use crate::error::Error;

/// What a file has of a parameter.
pub(super) struct Entries<'a> {
    file: &'a Path,
    tensors: &'a SafeTensors<'a>,
    slot: &'a Slot,
}

impl<'a> Entries<'a> {
    pub(super) fn new(file: &'a Path, tensors: &'a SafeTensors<'a>, slot: &'a Slot) -> Entries<'a> {
        Entries { file, tensors, slot }
    }

    /// Elements of the parameter.
    pub(super) fn length(&self) -> usize {
        self.slot.length
    }

    pub(super) fn has(&self, entry: &str) -> bool {
        self.view(entry).is_ok()
    }

    /// Numbers, as many as the parameter has elements.
    pub(super) fn numbers(&self, entry: &str) -> Result<Vec<f32>, Error> {
        let numbers = self.any_numbers(entry)?;
        self.check_count(entry, self.length(), numbers.len())?;
        Ok(numbers)
    }

    /// Numbers, `count` of them.
    pub(super) fn numbers_of(&self, entry: &str, count: usize) -> Result<Vec<f32>, Error> {
        let numbers = self.any_numbers(entry)?;
        self.check_count(entry, count, numbers.len())?;
        Ok(numbers)
    }

    /// Numbers of any count.
    pub(super) fn any_numbers(&self, entry: &str) -> Result<Vec<f32>, Error> {
        let view = self.view(entry)?;
        let halves = || view.data().as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half));
        match view.dtype() {
            Dtype::F64 => {
                let words = view.data().as_chunks::<8>().0.iter();
                Ok(words.map(|word| f64::from_le_bytes(*word) as f32).collect())
            }
            Dtype::F32 => {
                let words = view.data().as_chunks::<4>().0.iter();
                Ok(words.map(|word| f32::from_le_bytes(*word)).collect())
            }
            Dtype::F16 => Ok(halves().map(binary16_to_f32).collect()),
            Dtype::BF16 => Ok(halves().map(bf16_to_f32).collect()),
            other => Err(self.wrong(entry, "floating-point numbers".into(), format!("{other:?}"))),
        }
    }

    /// Bytes, `count` of them, of one of the types `dtypes`.
    pub(super) fn bytes(
        &self,
        entry: &str,
        dtypes: &[Dtype],
        count: usize,
    ) -> Result<&'a [u8], Error> {
        let view = self.view(entry)?;
        if !dtypes.contains(&view.dtype()) {
            let expected = format!("{dtypes:?}");
            return Err(self.wrong(entry, expected, format!("{:?}", view.dtype())));
        }
        self.check_count(entry, count, view.data().len())?;
        Ok(view.data())
    }

    /// The type of an entry.
    pub(super) fn dtype(&self, entry: &str) -> Result<Dtype, Error> {
        Ok(self.view(entry)?.dtype())
    }

    /// The one whole number of an entry.
    pub(super) fn whole(&self, entry: &str) -> Result<u64, Error> {
        let view = self.view(entry)?;
        let found = match (view.dtype(), view.data()) {
            (Dtype::I64, data) => {
                data.try_into().ok().and_then(|bytes| u64::try_from(i64::from_le_bytes(bytes)).ok())
            }
            // Steps may be numbers of any kind.
            (Dtype::F32 | Dtype::F64, _) => {
                let numbers = self.any_numbers(entry)?;
                let is_whole = |number: &f32| *number >= 0.0 && number.fract() == 0.0;
                numbers
                    .first()
                    .filter(|number| numbers.len() == 1 && is_whole(number))
                    .map(|&n| n as u64)
            }
            _ => None,
        };
        let shape = || format!("{:?} of shape {:?}", view.dtype(), view.shape());
        found.ok_or_else(|| self.wrong(entry, "one whole number from 0".into(), shape()))
    }

    /// The one number of an entry.
    pub(super) fn number(&self, entry: &str) -> Result<f64, Error> {
        let view = self.view(entry)?;
        if let (Dtype::F64, Ok(bytes)) = (view.dtype(), view.data().try_into()) {
            return Ok(f64::from_le_bytes(bytes));
        }
        Ok(f64::from(self.numbers_of(entry, 1)?[0]))
    }

    pub(super) fn check_count(
        &self,
        entry: &str,
        expected: usize,
        found: usize,
    ) -> Result<(), Error> {
        if expected == found {
            return Ok(());
        }
        Err(self.wrong(entry, format!("{expected} elements"), found.to_string()))
    }

    /// What is wrong with an entry.
    pub(super) fn wrong(&self, entry: &str, expected: String, found: String) -> Error {
        let expected = format!("`{}.{entry}`: {expected}", self.slot.name);
        Error::Foreign { file: self.file.to_owned(), expected, found }
    }

    fn view(&self, entry: &str) -> Result<TensorView<'a>, Error> {
        let name = format!("{}.{entry}", self.slot.name);
        self.tensors
            .tensor(&name)
            .map_err(|_| self.wrong(entry, "an entry of that name".into(), "none".into()))
    }
}
