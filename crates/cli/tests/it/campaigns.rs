//! Campaigns: the smoke campaign whole, stopped and resumed, as a batch array, and files that make no sense.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::tempdir;

use crate::program::{call, data, failure, json, text};
use crate::studies::CONFIG;

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn parsed(path: &Path) -> Value {
    serde_json::from_str(&read(path)).unwrap()
}

/// Two models with two rates each, of which one is promoted.
const CAMPAIGN: &str = r#"
name = "two"
[set]
run.updates = 20
[grid]
optimizer.lr = [1e-2, 1e-5]
[[models]]
name = "small"
config = "tiny.toml"
[[models]]
name = "wide"
config = "tiny.toml"
set.model.channels = 32
grid.optimizer.lr = [1e-5, 1e-2]
[promotion]
best = 1
set.run.updates = 40
"#;

fn folder(campaign: &str) -> tempfile::TempDir {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("tiny.toml"), CONFIG).unwrap();
    fs::write(folder.path().join("two.toml"), campaign).unwrap();
    folder
}

/// The configurations of the repository, if they are there.
fn configs() -> Option<PathBuf> {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    let configs = Path::new(&manifest).join("../../configs");
    configs.join("campaign-smoke.toml").exists().then_some(configs)
}

#[test]
fn the_smoke_campaign_makes_twelve_runs_and_three_longer_ones() {
    let Some(configs) = configs() else {
        eprintln!("skipped: configs/campaign-smoke.toml is not there");
        return;
    };
    let folder = tempdir().unwrap();
    let here = folder.path();
    let file = configs.join("campaign-smoke.toml");
    let file = file.to_str().unwrap();
    let listed = data(here, &["campaign", file, "--dry-run"]);
    assert_eq!(listed.lines().count(), 2 + 12, "{listed}");
    assert_eq!(fs::read_dir(here).unwrap().count(), 0);

    let args = ["campaign", file, "--output-dir", "out", "--devices", "cpu,cpu", "--json"];
    let outcome = json(here, &args);
    assert_eq!((&outcome["finished"], &outcome["failed"]), (&15.into(), &Value::Array(vec![])));
    for model in outcome["selected"].as_array().unwrap() {
        let short = model["short"].as_array().unwrap();
        assert_eq!(short.len(), 4);
        let losses: Vec<f64> = short.iter().map(|r| r["loss_nats"].as_f64().unwrap()).collect();
        assert!(losses.is_sorted(), "{losses:?}");
        // The longer run of the best short one is what is selected.
        let best = format!("{}-long", short[0]["run"].as_str().unwrap());
        assert_eq!(model["best"]["run"], best.as_str());
        let name = model["model"].as_str().unwrap();
        let yaml = read(&here.join(format!("out/selected-{name}.yaml")));
        assert!(yaml.contains(&format!("run: \"{best}\"")) && yaml.contains("\n  lr: "), "{yaml}");
        if !is_read_as_yaml(&here.join(format!("out/selected-{name}.yaml"))) {
            eprintln!("skipped: Python has no yaml here");
        }
        let config = read(&here.join(format!("out/runs/{best}/config.toml")));
        assert!(config.contains("updates = 60"), "{config}");
    }
    assert_eq!(parsed(&here.join("out/complete.json")), outcome);
    for name in [
        "report.md",
        "report.html",
        "comparison.json",
        "learning-curves.png",
        "learning-curves.svg",
        "selected-20m.yaml",
        "selected-50m.yaml",
        "selected-90m.yaml",
        "complete.json",
    ] {
        assert!(here.join("out").join(name).is_file(), "{name}");
    }
    let page = read(&here.join("out/report.md"));
    assert!(page.contains("## Ranking of 50m") && page.contains("| 20m-lr=0.01 |"), "{page}");

    // Nothing is made twice.
    let again = call(here, &[&args[..], &["--resume"]].concat());
    assert!(!text(&again.stderr).contains("begins"), "{}", text(&again.stderr));
    assert_eq!(serde_json::from_slice::<Value>(&again.stdout).unwrap(), outcome);
}

/// Has Python read what we wrote; false where it has no reader of YAML.
fn is_read_as_yaml(file: &Path) -> bool {
    let script = "import sys, yaml\nd = yaml.safe_load(open(sys.argv[1]))\nassert d['optimizer']['betas'] == [0.9, 0.99], d\n\
                  assert isinstance(d['model']['channels'], int) and d['data']['source'] == 'stories'";
    let python = |script: &str| {
        std::process::Command::new("python3").args(["-c", script]).arg(file).output().ok()
    };
    match python("import yaml") {
        Some(output) if output.status.success() => {
            let output = python(script).unwrap();
            assert!(output.status.success(), "{}", text(&output.stderr));
            true
        }
        _ => false,
    }
}

#[test]
fn the_study_of_three_sizes_has_twelve_runs() {
    let Some(configs) = configs() else {
        eprintln!("skipped: the configurations are not there");
        return;
    };
    let file = configs.join("campaign-20m-50m-90m.toml");
    let listed = data(Path::new("."), &["campaign", file.to_str().unwrap(), "--dry-run"]);
    assert_eq!(listed.lines().count(), 2 + 12, "{listed}");
    assert!(listed.contains("90m-lr=0.0024"), "{listed}");
}

#[test]
fn the_best_of_each_model_is_promoted() {
    let folder = folder(CAMPAIGN);
    let here = folder.path();
    let outcome = json(here, &["campaign", "two.toml", "--output-dir", "out", "--json"]);
    let best: Vec<&str> = outcome["selected"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["best"]["run"].as_str().unwrap())
        .collect();
    assert_eq!(best, ["small-lr=0.01-long", "wide-lr=0.01-long"]);
    assert_eq!(outcome["selected"][0]["best"]["tokens"], 40 * 4 * 16);
}

#[test]
fn a_run_that_fails_is_marked_and_a_model_without_enough_runs_stops_the_promotion() {
    let campaign = CAMPAIGN.replace("[1e-2, 1e-5]", "[1e-2, 1e30]");
    let folder = folder(&campaign);
    let here = folder.path();
    let error = failure(here, &["campaign", "two.toml", "--output-dir", "out"], 1);
    assert!(error.contains("small-lr=1e30 failed and is tried again"), "{error}");
    assert!(error.contains("1 of 6 runs failed"), "{error}");
    let complete = parsed(&here.join("out/complete.json"));
    assert_eq!(complete["finished"], 5);
    assert_eq!(complete["failed"][0][0], "small-lr=1e30");
    assert_eq!(complete["selected"][0]["failed"][0], "small-lr=1e30");
    assert!(read(&here.join("out/report.md")).contains("## Failed"));

    fs::write(here.join("two.toml"), campaign.replace("best = 1", "best = 2")).unwrap();
    let error = failure(here, &["campaign", "two.toml", "--output-dir", "other"], 2);
    assert!(error.contains("2 runs shall be promoted and 1 of 2 are finished"), "{error}");
    assert!(!here.join("other/complete.json").exists());
}

#[test]
fn campaign_files_that_make_no_sense_are_refused() {
    let replaced = |from: &str, to: &str| CAMPAIGN.replace(from, to);
    for (campaign, words) in [
        ("name = \"x\"\n".to_owned(), "no [[models]]"),
        ("models = []\n".to_owned(), "there are no runs"),
        (replaced("[1e-2, 1e-5]", "[]"), "no values, so there are no runs"),
        (
            replaced("[promotion]", "[promotio]"),
            "line 15: unknown key `promotio`; the nearest known one is `promotion`",
        ),
        (replaced("best = 1", "bets = 1"), "`best`"),
        (replaced("run.updates = 20", "run.update = 20"), "line 4: unknown key `run.update`"),
        (replaced("name = \"wide\"", "name = \"small\""), "two runs would be called small-lr=1e-5"),
        (replaced("[1e-2, 1e-5]", "[1e-2, 1e-2]"), "two runs would be called small-lr=0.01"),
        (replaced("best = 1", "best = 3"), "line 16: `best` = 3 of the 2 runs of small"),
        (replaced("best = 1", "best = 0"), "from 1 to 2 can"),
        (replaced("config = \"tiny.toml\"", "config = \"absent.toml\""), "absent.toml"),
        (replaced("optimizer.lr = [1e-2, 1e-5]", "optimizer.lr = [-1]"), "`optimizer.lr` must be"),
        (
            replaced("optimizer.lr = [1e-2, 1e-5]", "data.stories_seed = [1, 2]"),
            "compared by one validation set, but `data.stories_seed` is 1",
        ),
        (replaced("name = \"two\"", "name = 2"), "`name` takes a text"),
        ("name = \n".to_owned(), "two.toml line 1"),
    ] {
        let folder = folder(&campaign);
        let args = ["campaign", "two.toml", "--output-dir", "out"];
        let error = failure(folder.path(), &args, 2);
        assert!(error.contains(words), "{words}\n{error}");
        assert!(!folder.path().join("out").exists(), "{words}");
    }
    let error = failure(Path::new("."), &["campaign", "absent.toml"], 2);
    assert!(error.contains("absent.toml"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_stopped_campaign_goes_on_to_the_same_end() {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    let campaign = CAMPAIGN.replace("updates = 20", "updates = 150\nrun.validate_every = 50");
    let folder = folder(&campaign);
    let here = folder.path();
    let straight = json(here, &["campaign", "two.toml", "--output-dir", "straight", "--json"]);
    let args = ["campaign", "two.toml", "--output-dir", "out", "--json", "--devices", "cpu,cpu"];
    let mut stopped = 0;
    for delay_ms in [150, 300, 500] {
        let resume: &[&str] =
            if here.join("out/study.json").exists() { &["--resume"] } else { &[] };
        let child = crate::program::command(here, &[&args[..], resume].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        let output = child.wait_with_output().unwrap();
        let said = text(&output.stderr);
        match output.status.code() {
            Some(0) => break,
            // On a busy machine the signal came before the program had begun to look for one.
            None => continue,
            Some(75) => stopped += 1,
            code => panic!("{delay_ms} ms: {code:?}\n{said}"),
        }
        let state = read(&here.join("out/study.json"));
        assert!(!state.contains("\"running\"") && !state.contains("\"failed\""), "{state}");
    }
    assert!(stopped > 0, "no signal came while the campaign was going on");
    let resumed = json(here, &[&args[..], &["--resume"]].concat());
    assert_eq!(resumed, straight);
}

/// A stand-in for `sbatch` that makes the tasks of an array one after the other, there and then.
#[cfg(unix)]
const SBATCH: &str = r#"#!/bin/bash
echo "$@" >> calls.txt
job=$((100 + $(wc -l < calls.txt)))
for argument in "$@"; do case $argument in --array=*) range=${argument#--array=}; range=${range%%%*};; esac; done
script=${@: -1}
export SLURM_JOB_ID=$job
for index in $(seq ${range%-*} ${range#*-}); do
    SLURM_ARRAY_TASK_ID=$index bash "$script" >> tasks.txt 2>&1
done
[ -n "$range" ] || bash "$script" >> tasks.txt 2>&1
echo "$job;cluster"
"#;

#[cfg(unix)]
#[test]
fn a_batch_array_makes_the_same_campaign() {
    use std::os::unix::fs::PermissionsExt as _;

    let slurm = "[slurm]\noptions = [\"--gpus=1\"]\nsetup = [\"true # a module\"]\nparallel = 2\n";
    let folder = folder(&format!("{CAMPAIGN}{slurm}"));
    let here = folder.path();
    let straight = json(here, &["campaign", "two.toml", "--output-dir", "straight", "--json"]);

    let shown = data(here, &["campaign", "two.toml", "--slurm", "--output-dir", "written"]);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("J0=$(sbatch --parsable --array=0-3%2 "), "{shown}");
    assert!(lines[1].contains("--dependency=afterany:$J0 --array=0-1%2"), "{shown}");
    assert!(lines[2].contains("--dependency=afterany:$J1") && lines.len() == 3, "{shown}");
    let script = read(&here.join("written/slurm/short.sbatch"));
    for words in ["#SBATCH --gpus=1", "true # a module", "--signal=B:TERM@120", "scontrol requeue"]
    {
        assert!(script.contains(words), "{words}\n{script}");
    }

    let sbatch = here.join("sbatch");
    fs::write(&sbatch, SBATCH).unwrap();
    fs::set_permissions(&sbatch, fs::Permissions::from_mode(0o755)).unwrap();
    let submit = ["--slurm", "--submit", "--sbatch", "./sbatch", "--output-dir", "out"];
    data(here, &[&["campaign", "two.toml"], &submit[..]].concat());
    let calls = read(&here.join("calls.txt"));
    assert_eq!(calls.lines().count(), 3, "{calls}");
    assert!(calls.lines().nth(1).unwrap().contains("--dependency=afterany:101"), "{calls}");
    let complete = here.join("out/complete.json");
    assert!(complete.exists(), "{}", read(&here.join("tasks.txt")));
    assert_eq!(parsed(&complete), straight);

    // A task that is there already, one that is not, and nothing to collect.
    let task = |task: &'static str| ["campaign", "two.toml", "--output-dir", "out", "--task", task];
    assert!(text(&call(here, &task("short:1")).stderr).contains("is finished"));
    assert!(failure(here, &task("short:9"), 2).contains("4 runs in this stage"));
    assert!(failure(here, &task("middle:1"), 2).contains("short:INDEX"));
    let collect = ["campaign", "two.toml", "--output-dir", "written", "--collect"];
    let error = failure(here, &collect, 2);
    assert!(error.contains("0 of 2 are finished"), "{error}");
}

/// A stand-in for `srun` that starts the tasks of a step on this host.
#[cfg(unix)]
const SRUN: &str = r#"#!/bin/bash
[[ $1 == --ntasks=* && $2 == --kill-on-bad-exit=0 ]] || { echo "srun: $*" >&2; exit 9; }
tasks=${1#--ntasks=}; shift 2
export SLURM_STEP_NUM_TASKS=$tasks SLURM_NTASKS_PER_NODE=$tasks SLURM_STEP_NODELIST=127.0.0.1
for ((i = 1; i < tasks; i++)); do SLURM_PROCID=$i SLURM_LOCALID=$i "$@" & done
SLURM_PROCID=0 SLURM_LOCALID=0 "$@"; code=$?
wait
exit $code
"#;

#[cfg(unix)]
#[test]
fn runs_of_several_ranks_make_the_same_campaign() {
    use std::os::unix::fs::PermissionsExt as _;

    let shared = "[set]\nrun.accumulation = 2\nrun.reduction = \"fixed\"\nrun.updates = 20";
    let folder = folder(&CAMPAIGN.replace("[set]\nrun.updates = 20", shared));
    let here = folder.path();
    let campaign = ["campaign", "two.toml", "--output-dir"];
    let straight = json(here, &[&campaign[..], &["straight", "--json"]].concat());
    let by_two = ["two", "--devices", "cpu", "--ranks", "2", "--json"];
    assert_eq!(json(here, &[&campaign[..], &by_two].concat()), straight);
    let of_two_ranks = |run: &str| {
        let metrics = read(&here.join(run).join("metrics.jsonl"));
        let update = metrics.lines().find(|line| line.contains("\"rank_ms\"")).unwrap();
        let update: Value = serde_json::from_str(update).unwrap();
        assert_eq!(update["rank_ms"].as_array().unwrap().len(), 2, "{update}");
    };
    of_two_ranks("two/runs/small-lr=0.01");

    // The same by a batch array, each task of which starts a step of two ranks.
    for (name, program) in [("sbatch", SBATCH), ("srun", SRUN)] {
        let file = here.join(name);
        fs::write(&file, program).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let submit = ["out", "--slurm", "--submit", "--sbatch", "./sbatch", "--ranks", "2"];
    let path = format!("{}:{}", here.display(), std::env::var("PATH").unwrap());
    let arguments = [&campaign[..], &submit].concat();
    let output = crate::program::command(here, &arguments).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let complete = here.join("out/complete.json");
    assert!(complete.exists(), "{}", read(&here.join("tasks.txt")));
    assert_eq!(parsed(&complete), straight);
    of_two_ranks("out/runs/small-lr=0.01");

    // A run that two cannot share.
    let alone = ["alone", "--ranks", "2", "--devices", "cpu", "--set", "run.accumulation=1"];
    let output = call(here, &[&campaign[..], &alone].concat());
    assert!(text(&output.stderr).contains("`run.accumulation` must be at least 2"));
    let mixed = ["mixed", "--ranks", "2", "--devices", "cpu,cuda:0"];
    let error = failure(here, &[&campaign[..], &mixed].concat(), 2);
    assert!(
        error.contains("expected 2 CUDA devices or a multiple, found 2: cpu, cuda:0"),
        "{error}"
    );
}
