//! Text to finite token tapes, and tapes to windows.
