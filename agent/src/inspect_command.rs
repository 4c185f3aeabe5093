//! `drydock-agent inspect`: prints what this machine can do for guests. Needs no cluster.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use drydock_core::{configuration::Configuration, explain::explain, labels, mask, minimum_cpu::Minimum, node::policy};
use drydock_host::inspection::{self, InspectionOptions, InspectionReport};
use serde::Serialize;

use crate::{
    args::{InspectArgs, InspectOutput},
    cpu_map_queries::CpuMapQueries,
    inspector::options,
    table,
};

/// Inspects this machine and prints the result.
///
/// Fails if the command line is invalid for this machine, or if libvirt does not know the model that `--explain` names.
pub(crate) fn inspect(args: &InspectArgs) -> ExitCode {
    let report = inspection::inspect(&InspectionOptions {
        capabilities: args.capabilities_dir.clone(),
        ..options(&args.host)
    });
    match print(args, &report) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("drydock-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print(args: &InspectArgs, report: &InspectionReport) -> Result<ExitCode, String> {
    if args.output == InspectOutput::Report {
        return show(&json(report)?);
    }
    let features = &args.host.mask_features.0;
    let mut cpu_map_queries = CpuMapQueries::new(args.host.cpu_map_dir.clone());
    let queried = cpu_map_queries.query([args.min_cpu_model.clone()].into(), features);
    let minimum = Minimum::resolve(&args.min_cpu_model, |model| queried.features(model)).ok_or_else(|| {
        format!(
            "--min-cpu-model: `{}` is not allowed; allowed: a CPU model of {}",
            args.min_cpu_model,
            args.host.cpu_map_dir.display()
        )
    })?;
    let configuration = Configuration {
        obsolete_cpu_models: args
            .obsolete_cpu_models
            .iter()
            .map(|name| name.trim().to_owned())
            .collect(),
        use_emulation: args.allow_emulation,
        ..Configuration::default()
    };
    let policy = policy(&configuration, &minimum, args.host.label_aliases);
    let facts = mask::apply(&report.facts, features, &queried.masked_models);
    if let Some(model) = &args.explain {
        let explanation = explain(&facts, &policy, model);
        show(&explanation.to_string())?;
        return Ok(if explanation.known.is_some() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    }
    if args.models {
        return show(&table::models(&facts, &policy));
    }
    let problem = report.problem.as_ref().map(ToString::to_string);
    match args.output {
        InspectOutput::Json | InspectOutput::Report => show(&json(&facts)?),
        InspectOutput::Yaml => show(&serde_saphyr::to_string(&facts).map_err(|error| error.to_string())?),
        InspectOutput::Labels => {
            let desired = labels::desired(&facts, &policy);
            if let Some(why) = desired.withheld {
                eprintln!("drydock-agent: {}", why.sentence());
            }
            let lines: Vec<String> = desired
                .labels
                .iter()
                .map(|(key, value)| format!("{key}={value}\n"))
                .collect();
            show(&lines.concat())
        }
        InspectOutput::Table => {
            let page = table::machine(&facts, &policy, problem.as_deref());
            show(&format!(
                "{page}inspected in        {:.1} s\n",
                report.took.as_secs_f64()
            ))
        }
    }
}

fn json(value: &impl Serialize) -> Result<String, String> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(|error| error.to_string())
}

/// Writes to standard output. It is no error if the reader closes the output early (`| head`).
fn show(text: &str) -> Result<ExitCode, String> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.to_string()),
        _ => Ok(ExitCode::SUCCESS),
    }
}
