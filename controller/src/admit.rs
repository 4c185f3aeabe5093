//! `drydock-controller admit`: checks without a cluster whether Drydock would admit the manifests of a folder.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use drydock_core::{
    admission::judgement::{AdmissionVerdict, Judged, judge},
    configuration::Configuration,
};
use serde::Serialize;
use serde_json::Value;

use crate::{
    args::{AdmitArgs, AdmitOutput},
    launchers::native_architecture,
};

/// File extensions of manifests.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];
/// Exit code if an object is refused, or a manifest cannot be read.
const REFUSED: u8 = 2;

/// Result for the manifests of a folder.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct FolderReport {
    /// Number of admitted objects.
    admitted: usize,
    /// Number of refused objects.
    refused: usize,
    /// Number of objects of other kinds.
    not_considered: usize,
    /// Number of refused objects for each field, which is empty for an object as a whole.
    refusals_by_field: BTreeMap<String, usize>,
    /// Refused objects.
    objects: Vec<RefusedObject>,
    /// Manifests that cannot be read.
    unreadable: Vec<Unreadable>,
}

/// A refused object.
#[derive(Debug, Serialize)]
struct RefusedObject {
    file: String,
    kind: String,
    name: String,
    messages: Vec<String>,
}

/// A manifest that cannot be read.
#[derive(Debug, Serialize)]
struct Unreadable {
    file: String,
    error: String,
}

/// Reviews all manifests, and prints the result. The exit code is 2 if an object is refused or a manifest cannot be
/// read, and 1 if the folder cannot be read.
pub(crate) fn run(args: &AdmitArgs) -> ExitCode {
    let files = match files_of(&args.path) {
        Ok(files) => files,
        Err((path, error)) => {
            eprintln!("error: {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    };
    let mut report = FolderReport::default();
    for file in &files {
        report.add(file);
    }
    match args.output {
        AdmitOutput::Text => print!("{}", report.text()),
        AdmitOutput::Json => match serde_json::to_string_pretty(&report) {
            Ok(text) => println!("{text}"),
            Err(error) => eprintln!("error: {error}"),
        },
    }
    if report.refused == 0 && report.unreadable.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(REFUSED)
    }
}

/// Returns the path itself if it is a file, or the manifests in a folder and its subfolders, sorted by name.
fn files_of(path: &Path) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
    let at = |error| (path.to_owned(), error);
    if !fs::metadata(path).map_err(at)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut entries = Vec::new();
    for entry in fs::read_dir(path).map_err(at)? {
        entries.push(entry.map_err(at)?.path());
    }
    entries.sort();
    let mut files = Vec::new();
    for entry in entries {
        if entry.is_dir() && !entry.is_symlink() {
            files.extend(files_of(&entry)?);
        } else if entry
            .extension()
            .is_some_and(|ending| ENDINGS.iter().any(|known| ending == *known))
        {
            files.push(entry);
        }
    }
    Ok(files)
}

impl FolderReport {
    fn add(&mut self, file: &Path) {
        let name = file.display().to_string();
        let documents = fs::read_to_string(file)
            .map_err(|error| error.to_string())
            .and_then(|text| serde_saphyr::from_multiple::<Value>(&text).map_err(|error| error.to_string()));
        let documents = match documents {
            Ok(documents) => documents,
            Err(error) => {
                // Parsers add the position on further lines, which are omitted.
                let error = error.lines().next().unwrap_or_default().to_owned();
                self.unreadable.push(Unreadable { file: name, error });
                return;
            }
        };
        let configuration = Configuration::default();
        for document in documents {
            for judged in judge(&document, &configuration, native_architecture()) {
                self.count(&name, judged);
            }
        }
    }

    fn count(&mut self, file: &str, judged: Judged) {
        let why = match judged.verdict {
            AdmissionVerdict::Admitted => {
                self.admitted += 1;
                return;
            }
            AdmissionVerdict::NotConsidered => {
                self.not_considered += 1;
                return;
            }
            AdmissionVerdict::Refused(why) => why,
        };
        self.refused += 1;
        let mut fields: Vec<&String> = why.iter().map(|why| &why.field).collect();
        fields.sort();
        fields.dedup();
        for field in fields {
            *self.refusals_by_field.entry(field.clone()).or_default() += 1;
        }
        self.objects.push(RefusedObject {
            file: file.to_owned(),
            kind: judged.kind,
            name: judged.name,
            messages: why.into_iter().map(|why| why.message).collect(),
        });
    }

    /// Returns the report as human-readable text.
    fn text(&self) -> String {
        let mut text = String::new();
        for Unreadable { file, error } in &self.unreadable {
            text.push_str(&format!("{file}: cannot be read: {error}\n"));
        }
        for object in &self.objects {
            text.push_str(&format!(
                "{}: {} {:?} is refused:\n",
                object.file, object.kind, object.name
            ));
            for message in &object.messages {
                text.push_str(&format!("  {message}\n"));
            }
        }
        if !self.refusals_by_field.is_empty() {
            let mut fields: Vec<_> = self.refusals_by_field.iter().collect();
            fields.sort_by(|(one, first), (other, second)| second.cmp(first).then(one.cmp(other)));
            text.push_str("refused objects by field:\n");
            for (field, count) in fields {
                let field = if field.is_empty() { "(the whole object)" } else { field };
                text.push_str(&format!("{count:6}  {field}\n"));
            }
        }
        let considered = self.admitted + self.refused;
        let share = (self.admitted * 100).checked_div(considered).unwrap_or(0);
        text.push_str(&format!(
            "{considered} objects: {} admitted ({share} %), {} refused; {} of other kinds\n",
            self.admitted, self.refused, self.not_considered
        ));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFESTS: &str = "\
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: plain}
spec: {domain: {memory: {guest: 64Mi}, devices: {}}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: gpu}
spec: {domain: {memory: {guest: 64Mi}, devices: {gpus: [{name: a, deviceName: b}]}}}
---
apiVersion: v1
kind: Namespace
metadata: {name: other}
";

    #[test]
    fn folder_is_judged_with_counts_by_field() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("inner")).unwrap();
        fs::write(folder.path().join("inner/a.yaml"), MANIFESTS).unwrap();
        fs::write(folder.path().join("broken.yml"), "a: [").unwrap();
        fs::write(folder.path().join("notes.txt"), "a: [").unwrap();
        let files = files_of(folder.path()).unwrap();
        assert_eq!(files.len(), 2);
        let mut report = FolderReport::default();
        for file in &files {
            report.add(file);
        }
        assert_eq!((report.admitted, report.refused, report.not_considered), (1, 1, 1));
        assert_eq!(report.unreadable.len(), 1);
        let text = report.text();
        for expected in [
            "VirtualMachineInstance \"gpu\" is refused:\n  spec.domain.devices.gpus",
            "     1  spec.domain.devices.gpus\n",
            "2 objects: 1 admitted (50 %), 1 refused; 1 of other kinds\n",
            "broken.yml: cannot be read: ",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn folder_that_cannot_be_read_is_an_error() {
        assert!(files_of(Path::new("/nonexistent")).is_err());
    }
}
