//! The codecs against an independent definition in f64, whole spaces where they
//! are small enough; the list of formats; golden text of the layout.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod accounting;
mod bias;
mod counter_hash;
mod decode;
mod definition;
mod encode;
mod exp_log;
mod format_list;
mod golden;
mod grids;
mod maps;
mod properties;
mod roots;
mod split;
mod stochastic;
mod word;
