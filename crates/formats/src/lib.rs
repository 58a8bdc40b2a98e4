//! State formats of packed AdamW: how two moments persist between updates.
