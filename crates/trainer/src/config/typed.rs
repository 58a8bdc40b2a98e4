//! Settings read as values of one type each, with errors that name the key, the place and what it takes.

use toml::Value;

use crate::error::Error;
use crate::settings::Settings;

/// Reads settings as typed values.
pub struct Getter<'a> {
    /// The settings.
    pub settings: &'a Settings,
}

impl Getter<'_> {
    /// The value of a key, which it must have.
    pub fn value(&self, name: &str) -> Result<&Value, Error> {
        let setting = self.settings.get(name);
        setting.map(|setting| &setting.value).ok_or_else(|| missing(name, "give it a value"))
    }

    /// Where the value of a key came from.
    pub fn place(&self, name: &str) -> String {
        self.settings.get(name).map_or_else(String::new, |setting| setting.origin.clone())
    }

    /// A whole number of at least `least`.
    pub fn whole(&self, name: &str, least: u64) -> Result<u64, Error> {
        let value = self.value(name)?;
        let Value::Integer(number) = value else {
            return Err(self.wrong_type(name, "a whole number", value));
        };
        u64::try_from(*number)
            .ok()
            .filter(|&number| number >= least)
            .ok_or_else(|| self.wrong(name, &format!("at least {least}")))
    }

    /// The same, where there is a value.
    pub fn optional_whole(&self, name: &str, least: u64) -> Result<Option<u64>, Error> {
        self.settings.get(name).map(|_| self.whole(name, least)).transpose()
    }

    /// A finite number that is `good`.
    pub fn number(
        &self,
        name: &str,
        expected: &str,
        good: impl Fn(f64) -> bool,
    ) -> Result<f64, Error> {
        let value = self.value(name)?;
        let number = as_number(value).ok_or_else(|| self.wrong_type(name, "a number", value))?;
        if number.is_finite() && good(number) {
            Ok(number)
        } else {
            Err(self.wrong(name, expected))
        }
    }

    /// A text.
    pub fn text(&self, name: &str) -> Result<String, Error> {
        let value = self.value(name)?;
        let text = value.as_str().ok_or_else(|| self.wrong_type(name, "a text", value))?;
        Ok(text.to_owned())
    }

    /// The same, where there is a value.
    pub fn optional_text(&self, name: &str) -> Result<Option<String>, Error> {
        self.settings.get(name).map(|_| self.text(name)).transpose()
    }

    /// True or false.
    pub fn choice_bool(&self, name: &str) -> Result<bool, Error> {
        let value = self.value(name)?;
        value.as_bool().ok_or_else(|| self.wrong_type(name, "true or false", value))
    }

    /// One of the named choices.
    pub fn choice<T: Copy>(&self, name: &str, choices: &[(&str, T)]) -> Result<T, Error> {
        let text = self.text(name)?;
        choices.iter().find(|(choice, _)| *choice == text).map(|&(_, value)| value).ok_or_else(
            || {
                let names: Vec<&str> = choices.iter().map(|&(choice, _)| choice).collect();
                self.wrong(name, &names.join(" or "))
            },
        )
    }

    /// The error for a value that makes no sense.
    pub fn wrong(&self, name: &str, expected: &str) -> Error {
        Error::WrongValue {
            key: name.to_owned(),
            place: self.place(name),
            expected: expected.to_owned(),
            found: self
                .settings
                .get(name)
                .map_or_else(|| "nothing".into(), |s| s.value.to_string()),
        }
    }

    /// The error for a value of another type.
    pub fn wrong_type(&self, name: &str, expected: &'static str, found: &Value) -> Error {
        Error::WrongType {
            key: name.to_owned(),
            place: self.place(name),
            expected,
            found: format!("{} ({found})", found.type_str()),
        }
    }
}

/// The error for a key without a value.
pub fn missing(key: &str, needed: &str) -> Error {
    Error::Missing { key: key.to_owned(), needed: needed.to_owned() }
}

/// A number of either type.
pub fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    }
}
