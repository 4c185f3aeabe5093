//! Tests that the manifests of the console in the cluster grant it no rights and no token, and that the names in them
//! exist.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail as tests do")]

use std::{collections::BTreeMap, fs, path::Path};

use drydock_cli::{Exit, Terminal, run};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Secret, Service, ServiceAccount},
    rbac::v1::Role,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Returns the content of a file of `deploy`.
fn text(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn object<T: DeserializeOwned>(file: &str) -> T {
    serde_saphyr::from_str(&text(file)).unwrap()
}

#[test]
fn console_has_no_right_and_is_not_installed_by_default() {
    let kustomization: Value = object("console/kustomization.yaml");
    let resources = kustomization["resources"].as_array().unwrap();
    for resource in resources {
        let object: Value = object(&format!("console/{}", resource.as_str().unwrap()));
        let kind = object["kind"].as_str().unwrap();
        assert!(!kind.contains("Role") && !kind.contains("Webhook"), "{kind}");
        assert_eq!(object["metadata"]["namespace"], "drydock", "{kind}");
        // With this label, the object could not be deleted while there are virtual machines.
        assert_eq!(
            object["metadata"]["labels"].get("app.kubernetes.io/part-of"),
            None,
            "{kind}"
        );
    }
    let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/console")).unwrap();
    assert_eq!(resources.len() + 1, files.count(), "each file is part of it");
    let all: Value = object("kustomization.yaml");
    assert!(
        all["resources"]
            .as_array()
            .unwrap()
            .iter()
            .all(|resource| resource != "console")
    );
    for file in ["controller/rbac.yaml", "controller/roles.yaml", "agent/rbac.yaml"] {
        assert!(
            !text(file).contains("name: drydock-console\n"),
            "{file} binds nothing to it"
        );
    }
}

#[test]
fn pods_of_the_console_have_no_token_and_no_privilege() {
    let account: ServiceAccount = object("console/serviceaccount.yaml");
    assert_eq!(account.automount_service_account_token, Some(false));
    let deployment: Deployment = object("console/deployment.yaml");
    let spec = deployment.spec.unwrap();
    assert_eq!(spec.replicas, Some(2));
    let pod = spec.template.spec.unwrap();
    assert_eq!(pod.automount_service_account_token, Some(false));
    assert_eq!(pod.service_account_name, account.metadata.name);
    assert!(pod.host_network.is_none() && pod.host_pid.is_none() && pod.init_containers.is_none());
    let outer = pod.security_context.unwrap();
    assert_eq!((outer.run_as_non_root, outer.run_as_user), (Some(true), Some(65532)));
    for volume in pod.volumes.iter().flatten() {
        let from_object = volume.config_map.is_some() || volume.secret.is_some();
        assert!(from_object && volume.projected.is_none(), "{}", volume.name);
    }
    let [container] = <[_; 1]>::try_from(pod.containers).unwrap();
    let security = container.security_context.unwrap();
    assert_eq!(security.allow_privilege_escalation, Some(false));
    assert_eq!(security.read_only_root_filesystem, Some(true));
    assert_eq!(security.run_as_non_root, Some(true));
    assert_eq!(security.privileged, None);
    let capabilities = security.capabilities.unwrap();
    assert_eq!(
        (capabilities.drop, capabilities.add),
        (Some(vec!["ALL".to_owned()]), None)
    );
    assert_eq!(security.seccomp_profile.unwrap().type_, "RuntimeDefault");
    assert!(container.liveness_probe.is_some() && container.readiness_probe.is_some());
    assert!(container.resources.unwrap().limits.unwrap().contains_key("memory"));
    assert!(container.env.is_none() && container.env_from.is_none());
}

#[test]
fn console_manifest_has_a_valid_command_line() {
    let deployment: Deployment = object("console/deployment.yaml");
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    let container = &pod.containers[0];
    let mounts = container.volume_mounts.iter().flatten();
    let mounted: Vec<&str> = mounts.map(|mount| mount.mount_path.as_str()).collect();
    let arguments = container.args.clone().unwrap();
    for path in arguments
        .iter()
        .filter_map(|argument| argument.split_once('=')?.1.strip_prefix("/"))
    {
        let is_mounted = mounted.iter().any(|mount| format!("/{path}").starts_with(mount));
        assert!(is_mounted, "/{path}");
    }
    let mut words = vec!["kubectl-drydock".to_owned(), "console-server".to_owned()];
    words.extend(arguments);
    words.push("--help".into());
    let mut out = Vec::new();
    assert_eq!(run(words, &Terminal { width: 80 }, &mut out), Exit::Done);
    let recipe = text("images/console/Containerfile");
    assert!(recipe.contains("ENTRYPOINT [\"/usr/bin/kubectl-drydock\", \"console-server\"]"));
}

#[test]
fn console_uses_the_certificate_made_by_the_controller() {
    let secret: Secret = object("console/certificate.yaml");
    assert!(
        secret.data.is_none() && secret.string_data.is_none(),
        "applying it again must not empty it"
    );
    let name = secret.metadata.name.unwrap();
    let deployment: Deployment = object("console/deployment.yaml");
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    let mut mounted = BTreeMap::new();
    for secret in pod.volumes.into_iter().flatten().filter_map(|volume| volume.secret) {
        assert_eq!(secret.optional, Some(true), "{:?}", secret.secret_name);
        let keys = secret.items.into_iter().flatten().map(|item| item.key);
        mounted.insert(secret.secret_name.unwrap(), keys.collect::<Vec<_>>());
    }
    assert_eq!(
        mounted[&name],
        ["tls.crt", "tls.key"],
        "the authority's key is mounted nowhere"
    );
    assert_eq!(mounted["drydock-console-tls"], [""; 0]);
    let rules = text("controller/rbac.yaml");
    let roles = rules
        .split("---\n")
        .filter(|document| document.contains("\nkind: Role\n"));
    let roles: Vec<Role> = roles
        .map(|document| serde_saphyr::from_str(document).unwrap())
        .collect();
    let names = roles.iter().flat_map(|role| role.rules.iter().flatten());
    let mut names = names.flat_map(|rule| rule.resource_names.iter().flatten());
    assert!(names.any(|named| *named == name));
    let service: Service = object("console/service.yaml");
    assert_eq!(service.metadata.name.as_deref(), Some("drydock-console"));
    assert_eq!(service.spec.unwrap().selector, deployment_labels());
}

fn deployment_labels() -> Option<BTreeMap<String, String>> {
    let deployment: Deployment = object("console/deployment.yaml");
    deployment.spec.unwrap().template.metadata.unwrap().labels
}
