//! A GPT with hand-written forward and backward passes, written once for every device.
