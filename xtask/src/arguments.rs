//! Arguments of a task: words, flags, and flags with a value.

use anyhow::{Result, bail, ensure};

/// What was given after the name of a task.
#[derive(Debug)]
pub struct Arguments {
    rest: Vec<String>,
}

impl Arguments {
    /// Arguments as they were typed.
    pub fn new(rest: impl Iterator<Item = String>) -> Self {
        Self { rest: rest.collect() }
    }

    /// Takes a flag out; whether it was there.
    pub fn flag(&mut self, name: &str) -> bool {
        let place = self.rest.iter().position(|argument| argument == name);
        place.map(|place| self.rest.remove(place)).is_some()
    }

    /// Takes a flag and its value out.
    ///
    /// # Errors
    ///
    /// A flag at the end, without a value.
    pub fn value(&mut self, name: &str) -> Result<Option<String>> {
        let Some(place) = self.rest.iter().position(|argument| argument == name) else {
            return Ok(None);
        };
        ensure!(place + 1 < self.rest.len(), "{name} takes a value");
        self.rest.remove(place);
        Ok(Some(self.rest.remove(place)))
    }

    /// Takes the next word.
    ///
    /// # Errors
    ///
    /// No word, or a flag in its place.
    pub fn word(&mut self, what: &str) -> Result<String> {
        match self.rest.first() {
            Some(word) if !word.starts_with('-') => Ok(self.rest.remove(0)),
            Some(flag) => bail!("{flag}: no such flag"),
            None => bail!("expected {what}"),
        }
    }

    /// Refuses what nobody took.
    ///
    /// # Errors
    ///
    /// The first argument that is left.
    pub fn end(self) -> Result<()> {
        match self.rest.first() {
            Some(argument) => bail!("{argument}: no such flag or too many words"),
            None => Ok(()),
        }
    }
}
