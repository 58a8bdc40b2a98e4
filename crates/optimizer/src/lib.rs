//! AdamW whose moments persist packed.
