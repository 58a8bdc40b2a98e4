//! Tables in the documents that follow from the code.

use std::fs;
use std::path::Path;

use trainer::KEYS;

const BEGIN: &str = "<!-- keys: begin -->\n";
const END: &str = "<!-- keys: end -->\n";

#[test]
fn the_table_of_settings_is_that_of_the_code() {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    let path = Path::new(&manifest).join("../../docs/training.md");
    let Ok(text) = fs::read_to_string(&path) else {
        eprintln!("skipped: {} is not there", path.display());
        return;
    };
    let (before, rest) = text.split_once(BEGIN).expect("the table has a begin mark");
    let (_, after) = rest.split_once(END).expect("the table has an end mark");
    let mut table = String::from("| key | default | meaning |\n|---|---|---|\n");
    for key in KEYS {
        let default = key.default.map_or_else(String::new, |default| format!("`{default}`"));
        table.push_str(&format!("| `{}` | {default} | {} |\n", key.name, key.meaning));
    }
    let expected = format!("{before}{BEGIN}{table}{END}{after}");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &expected).unwrap();
    } else {
        assert_eq!(text, expected, "run the tests with UPDATE_GOLDEN=1 and read the difference");
    }
}

#[test]
fn every_configuration_in_the_repository_is_valid() {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    let folder = Path::new(&manifest).join("../../configs");
    let Ok(entries) = fs::read_dir(&folder) else {
        eprintln!("skipped: {} is not there", folder.display());
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        let mut settings = trainer::Settings::new();
        settings.add_file(&fs::read_to_string(&path).unwrap(), &path).unwrap();
        trainer::config::Config::new(&settings)
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}
