//! A campaign on a Slurm cluster: an array of short tasks, an array of promoted ones after it, and a task that
//! collects after both.
//!
//! Each task is this program once more, with `--task STAGE:INDEX`. Which runs are promoted follows from the short
//! runs' results when a task of the second array begins. Before its time is up Slurm asks a task to stop; it ends
//! with a checkpoint and exit code 75, and is queued again to go on.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tape::aside::write_file;

use super::{Campaign, LONG, SHORT};
use crate::error::Error;

/// Seconds before the end of its time at which a task is asked to stop.
const NOTICE_S: u32 = 120;

/// What the scripts are written for.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The folder of the study.
    pub folder: PathBuf,
    /// The campaign file.
    pub file: PathBuf,
    /// The program.
    pub program: PathBuf,
    /// Arguments that every task repeats, such as `--set KEY=VALUE`.
    pub arguments: Vec<String>,
    /// Processes that share a run, each a task of Slurm's.
    pub ranks: usize,
}

/// A batch script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Its file.
    pub path: PathBuf,
    /// What `sbatch` is given besides, the dependency on the job before it left out.
    pub arguments: Vec<String>,
}

impl Campaign {
    /// Writes the scripts into `slurm/` of the study's folder, in the order in which they run.
    ///
    /// # Errors
    ///
    /// What the file system refuses.
    pub fn write_slurm(&self, submission: &Submission) -> Result<Vec<Script>, Error> {
        let folder = submission.folder.join("slurm");
        std::fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        let stages = [(SHORT, self.short_runs().len()), (LONG, self.long_count())];
        let mut scripts = Vec::new();
        for (stage, count) in stages.into_iter().filter(|(_, count)| *count > 0) {
            let last = count - 1;
            let limit =
                self.slurm.parallel.map_or_else(String::new, |tasks| format!("%{}", tasks.max(1)));
            let task = format!("--task \"{stage}:$SLURM_ARRAY_TASK_ID\"");
            let srun = match submission.ranks {
                1 => String::new(),
                ranks => format!("srun --ntasks={ranks} --kill-on-bad-exit=0 "),
            };
            let path = folder.join(format!("{stage}.sbatch"));
            write_file(&path, self.script(submission, stage, [&srun, &task]).as_bytes())?;
            scripts.push(Script { path, arguments: vec![format!("--array=0-{last}{limit}")] });
        }
        let path = folder.join("collect.sbatch");
        write_file(&path, self.script(submission, "collect", ["", "--collect"]).as_bytes())?;
        scripts.push(Script { path, arguments: Vec::new() });
        Ok(scripts)
    }

    fn script(&self, submission: &Submission, stage: &str, [before, what]: [&str; 2]) -> String {
        let logs = submission.folder.join("logs");
        let mut text = String::from("#!/bin/bash\n");
        let mut option = |option: &str| {
            let _ = writeln!(text, "#SBATCH {option}");
        };
        option(&format!("--job-name={}-{stage}", self.name));
        option(&format!("--output={}/slurm-{stage}-%A-%a.out", logs.display()));
        option("--open-mode=append");
        option("--requeue");
        option(&format!("--signal=B:TERM@{NOTICE_S}"));
        self.slurm.options.iter().for_each(|given| option(given));
        let quote = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
        let path = |path: &Path| quote(&path.to_string_lossy());
        let arguments: Vec<String> = submission.arguments.iter().map(|text| quote(text)).collect();
        for line in &self.slurm.setup {
            let _ = writeln!(text, "{line}");
        }
        let _ = write!(
            text,
            "\n{before}{} campaign {} --output-dir {} {} {what} &\ntask=$!\n\
             trap 'kill -TERM $task' TERM\n\
             # A signal ends a wait, not the task.\n\
             wait $task; code=$?\n\
             while kill -0 $task 2>/dev/null; do wait $task; code=$?; done\n\
             # Stopped with a checkpoint: queue it again.\n\
             if [ $code -eq 75 ]; then scontrol requeue \"$SLURM_JOB_ID\"; fi\n\
             exit $code\n",
            path(&submission.program),
            path(&submission.file),
            path(&submission.folder),
            arguments.join(" "),
        );
        text
    }
}

impl Script {
    /// The call of `sbatch`, after the job `before` if there is one.
    #[must_use]
    pub fn sbatch_arguments(&self, before: Option<&str>) -> Vec<String> {
        let mut arguments = vec!["--parsable".to_owned()];
        // Also after runs that failed: the others go on.
        arguments.extend(before.map(|job| format!("--dependency=afterany:{job}")));
        arguments.extend(self.arguments.iter().cloned());
        arguments.push(self.path.to_string_lossy().into_owned());
        arguments
    }

    /// Hands the script to `sbatch`; the number of the job.
    ///
    /// # Errors
    ///
    /// A program that is not there or that refuses.
    pub fn submit(&self, sbatch: &Path, before: Option<&str>) -> Result<String, Error> {
        let failed = |message: String| Error::Study {
            place: format!("{} {}", sbatch.display(), self.path.display()),
            message,
        };
        let output = Command::new(sbatch)
            .args(self.sbatch_arguments(before))
            .output()
            .map_err(|error| failed(format!("cannot be started: {error}")))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        // `JOB` or `JOB;CLUSTER`.
        let text = String::from_utf8_lossy(&output.stdout);
        let job = text.trim().split(';').next().unwrap_or_default();
        if job.is_empty() { Err(failed("it named no job".into())) } else { Ok(job.to_owned()) }
    }
}
