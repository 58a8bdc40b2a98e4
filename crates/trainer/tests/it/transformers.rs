//! Weights out and in: folders of `transformers`, by ourselves and, where it is installed, by `transformers`.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use model::{Cpu, Decoder, Layout};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};
use trainer::{Device, Error, Restored, export, import};

use crate::tiny;

/// A trained tiny model and its export.
fn exported() -> (TempDir, PathBuf) {
    let folder = tempdir().unwrap();
    tiny::train(&tiny::settings(&[]), &folder.path().join("run")).unwrap();
    let out = folder.path().join("out");
    export(&Restored::open(&folder.path().join("run")).unwrap(), &out).unwrap();
    (folder, out)
}

/// Python with transformers and torch: the variable TRANSFORMERS_PYTHON, or `.venv-transformers` at the root.
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn python() -> Option<PathBuf> {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    let named = std::env::var_os("TRANSFORMERS_PYTHON").map(PathBuf::from);
    let python =
        named.unwrap_or_else(|| Path::new(&manifest).join("../../.venv-transformers/bin/python"));
    if python.exists() {
        return Some(python);
    }
    let required = std::env::var("REQUIRE_TRANSFORMERS").is_ok_and(|value| value == "1");
    assert!(!required, "REQUIRE_TRANSFORMERS=1: {} is not there", python.display());
    eprintln!("skipped: no transformers in {}", python.display());
    None
}

/// What transformers makes of a folder, and what it saves again.
fn by_transformers(python: &Path, folder: &Path, ids: &[u32], text: &str, saved: &Path) -> Value {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    let output = Command::new(python)
        .arg(Path::new(&manifest).join("tests/it/by_transformers.py"))
        .arg(folder)
        .args([&json!(ids).to_string(), text])
        .arg(saved)
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Our logits after each of `ids`.
fn logits(model: &Restored, ids: &[u32]) -> Vec<f32> {
    let mut decoder = Decoder::new(Cpu::<f32>::new(), model.network()).unwrap();
    let parameters = model.parameters().to_vec();
    ids.iter().flat_map(|&id| decoder.step(&parameters, id).unwrap().to_vec()).collect()
}

#[test]
fn transformers_computes_the_same_logits_and_tokens() {
    let Some(python) = python() else { return };
    let (folder, out) = exported();
    let model = Restored::open(&folder.path().join("run")).unwrap();
    let text = "Once there was a fox, naïve and 12 years old.\n  Yes!";
    let mut ids = model.tokenizer.encode(text);
    ids.truncate(model.network().context() - 1);
    ids.push(model.tokenizer.end_of_document());
    let saved = folder.path().join("saved");
    let found = by_transformers(&python, &out, &ids, text, &saved);
    assert_eq!(found["kind"], "GPT2LMHeadModel");
    assert_eq!(found["parameters"], model.network().parameters());
    assert_eq!(found["encoded"], json!(model.tokenizer.encode(text)));
    assert_eq!(found["decoded"], text);
    assert_eq!(found["end"], model.tokenizer.end_of_document());
    let theirs: Vec<f64> = found["logits"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|row| row.as_array().unwrap())
        .map(|logit| logit.as_f64().unwrap())
        .collect();
    let ours = logits(&model, &ids);
    assert_eq!(ours.len(), theirs.len());
    let largest = theirs.iter().fold(0.0_f64, |largest, logit| largest.max(logit.abs()));
    // Sums of the same products in another order; f32 keeps 24 bits.
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert!((f64::from(*ours) - theirs).abs() < 1e-5 * largest.max(1.0), "{ours} {theirs}");
    }
    // What transformers saves comes back in with the same bits.
    let back = import(&saved, &folder.path().join("back")).unwrap();
    assert_eq!(Restored::open(&back.checkpoint).unwrap().parameters(), model.parameters());
}

#[test]
fn what_is_exported_comes_back_and_training_goes_on_from_it() {
    let (folder, out) = exported();
    let model = Restored::open(&folder.path().join("run")).unwrap();
    let imported = import(&out, &folder.path().join("in")).unwrap();
    let back = Restored::open(&folder.path().join("in")).unwrap();
    assert_eq!(back.parameters(), model.parameters());
    assert_eq!(back.tokenizer.json(), model.tokenizer.json());
    let sampling = trainer::Sampling { tokens: 4, temperature: 0.7, top_k: 0, seed: 1 };
    assert_eq!(back.sample(&Device::Cpu, "Once", &sampling, &mut |_| true).unwrap(), 4);

    // The settings that import wrote, and the tapes of the first run.
    let data = folder.path().join("run/data");
    let run = |more: &[&str], name: &str| {
        let mut settings = tiny::settings(&["run.validate_every=0"]);
        let start = fs::read_to_string(&imported.settings).unwrap();
        settings.add_file(&start, &imported.settings).unwrap();
        settings.add_assignment("data.source=\"tapes\"").unwrap();
        for part in ["train", "validation"] {
            let path = data.join(format!("{part}.tokens.u32"));
            settings
                .set_text(&format!("data.{part}_tokens"), &path.to_string_lossy(), "test")
                .unwrap();
        }
        more.iter().for_each(|change| settings.add_assignment(change).unwrap());
        tiny::train(&settings, &folder.path().join(name))
    };
    let before = tiny::train(&tiny::settings(&[]), &folder.path().join("again")).unwrap();
    let after = run(&[], "on").unwrap();
    assert!(after.validation_loss_nats < before.validation_loss_nats, "{after:?} {before:?}");
    // A learning rate of next to nothing leaves the loss where the first run ended.
    let still = run(&["optimizer.lr=1e-30", "optimizer.weight_decay=0.0"], "still").unwrap();
    assert_eq!(still.validation_loss_nats.to_bits(), before.validation_loss_nats.to_bits());
    let error = run(&["model.heads=4"], "other").unwrap_err().to_string();
    assert!(error.contains("H 2") && error.contains("H 4"), "{error}");
}

/// The tensors of a folder, changed.
fn rewrite(
    folder: &Path,
    change: impl Fn(&str, &TensorView<'_>) -> Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
) {
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let changed: Vec<_> = tensors.iter().flat_map(|(name, tensor)| change(name, &tensor)).collect();
    let views = changed.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    serialize_to_file(views, None::<HashMap<String, String>>, &path).unwrap();
}

fn same(name: &str, tensor: &TensorView<'_>) -> (String, Dtype, Vec<usize>, Vec<u8>) {
    (name.to_owned(), tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec())
}

#[test]
fn the_layout_of_the_published_files_is_taken() {
    let (folder, out) = exported();
    let model = Restored::open(&folder.path().join("run")).unwrap();
    rewrite(&out, |name, tensor| {
        let bare = name.strip_prefix("transformer.").unwrap();
        let mut tensors = vec![same(bare, tensor)];
        if bare == "wte.weight" {
            tensors.push(same("lm_head.weight", tensor));
        }
        if let Some(block) = bare.strip_suffix("ln_1.weight") {
            tensors.push((
                format!("{block}attn.bias"),
                Dtype::U8,
                vec![1, 1, 2, 2],
                vec![1, 0, 1, 1],
            ));
        }
        tensors
    });
    // The published tokenizer names its last entry, joins merges by a space and leaves defaults out.
    let path = out.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let end = tokenizer["added_tokens"][0]["id"].clone();
    tokenizer["model"]["vocab"]["<|endoftext|>"] = end;
    let merges = tokenizer["model"]["merges"].as_array().unwrap();
    let join = |pair: &Value| {
        json!(format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()))
    };
    tokenizer["model"]["merges"] = merges.iter().map(join).collect();
    for key in ["type", "byte_fallback", "ignore_merges"] {
        tokenizer["model"].as_object_mut().unwrap().remove(key);
    }
    fs::write(&path, tokenizer.to_string()).unwrap();
    let mut config: Value =
        serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
    config.as_object_mut().unwrap().retain(|key, _| {
        key.starts_with("n_") && key != "n_inner" || ["model_type", "vocab_size"].contains(&&**key)
    });
    fs::write(out.join("config.json"), config.to_string()).unwrap();
    import(&out, &folder.path().join("in")).unwrap();
    let back = Restored::open(&folder.path().join("in")).unwrap();
    assert_eq!(back.parameters(), model.parameters());
    assert_eq!(back.tokenizer.json(), model.tokenizer.json());
}

#[test]
fn half_precision_is_taken_exactly() {
    for (dtype, back) in [
        (Dtype::BF16, (|bits| half::bf16::from_bits(bits).to_f32()) as fn(u16) -> f32),
        (Dtype::F16, |bits| half::f16::from_bits(bits).to_f32()),
    ] {
        let (folder, out) = exported();
        // Any finite bits will do.
        let bits = |index: usize| (index as u16).wrapping_mul(40_503) & 0xbbff;
        rewrite(&out, |name, tensor| {
            let count = tensor.data().len() / 4;
            let bytes = (0..count).flat_map(|index| bits(index).to_le_bytes()).collect();
            vec![(name.to_owned(), dtype, tensor.shape().to_vec(), bytes)]
        });
        import(&out, &folder.path().join("in")).unwrap();
        let model = Restored::open(&folder.path().join("in")).unwrap();
        for slot in Layout::new(model.network()).slots() {
            for (index, value) in model.parameters()[slot.range()].iter().enumerate() {
                assert_eq!(value.to_bits(), back(bits(index)).to_bits());
            }
        }
    }
}

#[test]
fn what_our_network_would_compute_differently_is_refused_by_name() {
    let (folder, out) = exported();
    let config: Value =
        serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
    let refused = |expected: &str| {
        let error = import(&out, &folder.path().join("in")).unwrap_err();
        let is_about_it = matches!(error, Error::Foreign { .. } | Error::Tape(_) | Error::Model(_));
        assert!(is_about_it && error.to_string().contains(expected), "{expected}: {error}");
        assert!(!folder.path().join("in/checkpoints").exists());
    };
    for (key, value) in [
        ("model_type", json!("llama")),
        ("activation_function", json!("relu")),
        ("layer_norm_epsilon", json!(1e-6)),
        ("scale_attn_by_inverse_layer_idx", json!(true)),
        ("tie_word_embeddings", json!(false)),
        ("n_inner", json!(17)),
        ("n_layer", json!(-1)),
        ("n_layer", json!(2)),
        ("n_head", json!(3)),
        ("vocab_size", json!(299)),
    ] {
        let mut changed = config.clone();
        changed[key] = value;
        fs::write(out.join("config.json"), changed.to_string()).unwrap();
        let expected = match (key, &changed[key]) {
            ("n_layer", layers) if layers == &json!(2) => "h.1.ln_1.weight",
            ("n_head", _) => "3 heads",
            ("vocab_size", _) => "wte.weight",
            _ => key,
        };
        refused(expected);
    }
    fs::write(out.join("config.json"), config.to_string()).unwrap();
    let whole = fs::read(out.join("model.safetensors")).unwrap();
    let put_back = || fs::write(out.join("model.safetensors"), &whole).unwrap();
    rewrite(&out, |name, tensor| {
        let mut tensors = vec![same(name, tensor)];
        if name.ends_with("wte.weight") {
            let mut other = same("lm_head.weight", tensor);
            other.3[0] ^= 1;
            tensors.push(other);
        }
        tensors
    });
    refused("lm_head.weight");
    put_back();
    rewrite(&out, |name, tensor| {
        let mut tensor = same(name, tensor);
        if name.ends_with("ln_f.bias") {
            tensor.3[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        vec![tensor]
    });
    refused("NaN at 1");
    put_back();
    rewrite(&out, |name, tensor| vec![same(name, tensor), same(&format!("{name}.lora"), tensor)]);
    refused(".lora");
    fs::write(out.join("model.safetensors"), &whole[..whole.len() / 2]).unwrap();
    refused("a safetensors file");
    put_back();
    fs::write(out.join("tokenizer.json"), "{}").unwrap();
    refused("a tokenizer with a model");
}

#[test]
fn folders_that_hold_something_are_left_alone() {
    let (folder, out) = exported();
    let model = Restored::open(&folder.path().join("run")).unwrap();
    assert!(matches!(export(&model, &out).unwrap_err(), Error::FolderTaken { .. }));
    let run = folder.path().join("run");
    assert!(matches!(import(&out, &run).unwrap_err(), Error::FolderTaken { .. }));
}

/// Every seed of the fuzz target, and every single flipped bit at the start of each file, ends in a result or an
/// error.
#[test]
fn spoilt_folders_end_in_errors() {
    let (folder, out) = exported();
    let target = folder.path().join("in");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let whole = fs::read(out.join(name)).unwrap();
        for bit in 0..8 * whole.len().min(40) {
            let mut spoilt = whole.clone();
            spoilt[bit / 8] ^= 1 << (bit % 8);
            fs::write(out.join(name), &spoilt).unwrap();
            if import(&out, &target).is_ok() {
                fs::remove_dir_all(&target).unwrap();
            }
        }
        fs::write(out.join(name), &whole).unwrap();
    }
    import(&out, &target).unwrap();
}

/// The form in which GPT-2's tokenizer is published, as a seed of the fuzz target has it.
#[test]
fn the_published_form_of_a_tokenizer_is_taken() {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    let seed = "../../fuzz/seeds/foreign_tokenizer/published-form.json";
    let Ok(json) = fs::read(Path::new(&manifest).join(seed)) else { return };
    let tokenizer = tape::tokenizer::Tokenizer::from_foreign(&json, Path::new(seed)).unwrap();
    assert_eq!((tokenizer.end_of_document(), tokenizer.vocabulary()), (258, 259));
    let text = "the <|endoftext|>";
    assert_eq!(tokenizer.decode(&tokenizer.encode(text)).unwrap(), text);
    assert!(!tokenizer.encode(text).contains(&258));
}
