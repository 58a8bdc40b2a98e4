//! Moments that other optimizers left, as `python/examples/export_moments.py` writes them: for every parameter the
//! entries of its state by their own names, `<parameter>.<entry>`, numbers as arrays of one element.
//!
//! | optimizer | entries |
//! |---|---|
//! | torch | `exp_avg`, `exp_avg_sq` |
//! | bitsandbytes | `state1`, `state2` as codes with `absmax1`, `qmap1` and so on, or as f32 |
//! | torchao | `exp_avg.codes`, `exp_avg.scale` and, but for fp8, `exp_avg.qmap`; likewise `exp_avg_sq` |
//! | turboadam | `ustate.*` or `exp_avg`, `v_state.*` or `exp_avg_sq` |
//!
//! with `step`, and for turboadam `betas` and `eps`. Nothing in such a file is believed: every size is compared with
//! the parameter's, and every decoded number is one that an update can leave.

mod codes;
mod entries;
#[cfg(test)]
mod tests;
mod turboadam;

use std::path::Path;

use model::Slot;
use optimizer::DecodedMoments;
use safetensors::SafeTensors;

use crate::convert::Moments;
use crate::error::Error;
use crate::read;

use entries::Entries;

/// The moments of a file, in the order of the slots.
pub(super) struct Foreign {
    /// The optimizer that they are of.
    pub(super) kind: String,
    pub(super) moments: Moments,
}

/// Reads the moments of all slots, which have had `update` updates.
pub(super) fn read(file: &Path, slots: &[Slot], update: u64) -> Result<Foreign, Error> {
    let bytes = read::bytes(file).map_err(Error::io("read", file))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| Error::Foreign {
        file: file.to_owned(),
        expected: "a safetensors file".into(),
        found: error.to_string(),
    })?;
    let (mut kinds, mut moments) = (Vec::new(), Vec::new());
    for slot in slots {
        let entries = Entries::new(file, &tensors, slot);
        let step = entries.whole("step")?;
        if step != update {
            let expected = format!("{update} updates, those of the checkpoint");
            return Err(entries.wrong("step", expected, step.to_string()));
        }
        let (kind, decoded) = decode(&entries, step)?;
        check(&entries, &decoded)?;
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
        moments.push(decoded);
    }
    Ok(Foreign { kind: kinds.join(" and "), moments })
}

/// Which optimizer the entries are of, and what they stand for.
fn decode(entries: &Entries<'_>, step: u64) -> Result<(&'static str, DecodedMoments), Error> {
    fn plain(entries: &Entries<'_>, name: &str) -> Result<Vec<f32>, Error> {
        entries.numbers(name)
    }
    let of_both = |kind, names: [&str; 2], decode: fn(&Entries<'_>, &str) -> Result<_, Error>| {
        Ok((kind, DecodedMoments { m: decode(entries, names[0])?, v: decode(entries, names[1])? }))
    };
    let names = ["exp_avg", "exp_avg_sq"];
    if entries.has("state1") {
        of_both("bitsandbytes", ["1", "2"], codes::of_bitsandbytes)
    } else if entries.has("ustate.codes") || entries.has("v_state.indices") {
        Ok(("turboadam", turboadam::decode(entries, step)?))
    } else if entries.has("exp_avg.codes") {
        of_both("torchao", names, codes::of_torchao)
    } else if entries.has("exp_avg") {
        of_both("torch", names, plain)
    } else {
        let expected = "the entries of a state of torch, bitsandbytes, torchao or turboadam";
        Err(entries.wrong("exp_avg", expected.into(), "none of them".into()))
    }
}

/// No update leaves anything else.
fn check(entries: &Entries<'_>, decoded: &DecodedMoments) -> Result<(), Error> {
    if let Some(index) = decoded.m.iter().position(|m| !m.is_finite()) {
        let found = format!("{:e} at element {index}", decoded.m[index]);
        return Err(entries.wrong("first moment", "finite numbers".into(), found));
    }
    let is_good = |v: &f32| (0.0..f32::INFINITY).contains(v);
    if let Some(index) = decoded.v.iter().position(|v| !is_good(v)) {
        let found = format!("{:e} at element {index}", decoded.v[index]);
        let expected = "finite numbers that are not negative";
        return Err(entries.wrong("second moment", expected.into(), found));
    }
    Ok(())
}
