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
fn presets_have_the_documented_parameters() {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    let root = Path::new(&manifest).join("../..");
    let Ok(models) = fs::read_to_string(root.join("docs/models.md")) else {
        eprintln!("skipped: docs/models.md is not there");
        return;
    };
    let rows = models.lines().filter(|line| line.contains("| `configs/")).collect::<Vec<_>>();
    assert_eq!(rows.len(), 3, "20M, 50M and 90M");
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let file = cells[2].trim_matches('`');
        let mut settings = trainer::Settings::new();
        let text = fs::read_to_string(root.join(file)).unwrap();
        settings.add_file(&text, Path::new(file)).unwrap();
        let section = trainer::config::Config::new(&settings).unwrap().model;
        let shape = trainer::manifest::Shape {
            vocabulary: section.vocabulary.unwrap(),
            context: section.context,
            channels: section.channels,
            layers: section.layers,
            heads: section.heads,
        };
        let parameters = model::Layout::new(shape.network().unwrap()).parameters();
        assert_eq!(parameters.to_string(), cells[6].replace(',', ""), "{file}");
        assert_eq!((shape.context, shape.vocabulary), (1024, 12_096));
        assert!(text.contains(cells[6]), "{file} says how many parameters it has");
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
        if path.file_name().unwrap().to_string_lossy().starts_with("campaign-") {
            trainer::campaign::Campaign::load(&path, &[])
                .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            continue;
        }
        let mut settings = trainer::Settings::new();
        settings.add_file(&fs::read_to_string(&path).unwrap(), &path).unwrap();
        trainer::config::Config::new(&settings)
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}
