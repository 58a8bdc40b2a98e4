//! The committed contract against the committed tokenizer.

use tape::checksum::Checksum;
use tape::contract::{Contract, RDQ_SOURCE_BYTES};
use tape::tokenizer::Tokenizer;

use super::fixture::{Folder, HandMade, check_message, repository, updates_golden};

#[test]
fn the_committed_contract_names_the_committed_tokenizer() {
    let path = repository().join("corpus-contract.json");
    let tokenizer = Tokenizer::bundled();
    let ours = Contract::with_tokenizer(&tokenizer);
    if updates_golden() {
        ours.save(&path).unwrap();
    }
    let contract = Contract::load(&path).unwrap();
    assert_eq!(contract, ours);
    contract.check_tokenizer(tokenizer.sha256()).unwrap();

    let file = std::fs::read(repository().join(&contract.tokenizer_file)).unwrap();
    assert_eq!(Checksum::of(&file), contract.tokenizer.sha256);
    assert_eq!(contract.tokenizer.entries, 12_095);
    assert_eq!(contract.tokenizer.vocabulary, 12_096);
    assert_eq!(contract.end_of_document.id, 12_095);
    assert_eq!(contract.reference_data_quantum.source_bytes, RDQ_SOURCE_BYTES);
    assert_eq!(RDQ_SOURCE_BYTES, 1_000_000_000);

    let page = std::fs::read_to_string(repository().join("docs/data.md")).unwrap();
    assert!(page.contains(&tokenizer.sha256().to_string()), "docs/data.md names another hash");
}

#[test]
fn tapes_of_another_tokenizer_are_outside_the_contract() {
    let contract = Contract::with_tokenizer(&Tokenizer::bundled());
    let error = contract.check_tape(&HandMade::new(8).sidecar()).unwrap_err();
    let found = Checksum::of(b"no tokenizer").to_string();
    check_message(&error, &["the tokenizer with SHA-256", &found]);
}

#[test]
fn another_contract_is_refused() {
    let folder = Folder::new();
    let good = serde_json::to_value(Contract::with_tokenizer(&Tokenizer::bundled())).unwrap();
    let check = |change: &dyn Fn(&mut serde_json::Value), problem: &str| {
        let mut json = good.clone();
        change(&mut json);
        let path = folder.write("contract.json", json.to_string());
        let error = Contract::load(&path).unwrap_err();
        check_message(&error, &["contract.json is no valid corpus contract", problem]);
    };
    check(&|json| json["surprise"] = 1.into(), "unknown field `surprise`");
    check(&|json| json["name"] = "another".into(), "\"name\"");
    check(
        &|json| json["reference_data_quantum"]["source_bytes"] = 1.into(),
        "\"reference_data_quantum\"",
    );
    check(&|json| json["tape"]["format_version"] = 2.into(), "\"tape\"");
    check(&|json| json["end_of_document"]["id"] = 0.into(), "\"end_of_document\"");
    check(&|json| json["tokenizer"]["vocabulary"] = 5.into(), "entries and one more");
    check(&|json| json["validation_split"] = "by hand".into(), "\"validation_split\"");
}
