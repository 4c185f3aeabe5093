//! Tests with folders of hostile pods, and of pods that are still being created.

use std::{
    collections::BTreeMap,
    fs,
    os::{
        fd::AsRawFd,
        unix::{fs::symlink, net::UnixListener},
    },
    path::Path,
    time::Duration,
};

use nix::{sys::stat::Mode, unistd::mkfifo};
use tokio::task::JoinSet;

use super::{FolderError, PodFileError, PodFolder, PodSecret, SMALL_FILE, watches::waiters_for};

const UID: &str = "0f9a3c1e-6d1b-4c55-9a51-7d1c6a1f2b3c";

/// Folder of a kubelet. It is removed at the end of the test.
struct Kubelet(std::path::PathBuf);

impl Kubelet {
    fn new() -> Self {
        let root = nix::unistd::mkdtemp(&std::env::temp_dir().join("drydock-kubelet-XXXXXX")).unwrap();
        fs::create_dir(root.join("pods")).unwrap();
        Self(root)
    }

    fn folder(&self) -> PodFolder {
        PodFolder::new(&self.0, UID, "run").unwrap()
    }

    fn volume(&self) -> std::path::PathBuf {
        self.0
            .join("pods")
            .join(UID)
            .join("volumes/kubernetes.io~empty-dir/run")
    }

    /// Returns a Secret that is not mounted yet, and the folder of its volume.
    fn secret(&self) -> (PodSecret, std::path::PathBuf) {
        let volumes = self.0.join("pods").join(UID).join("volumes");
        let folder = volumes.join("kubernetes.io~secret/credentials-0");
        fs::create_dir_all(&folder).unwrap();
        (PodSecret::new(&self.0, UID, "credentials-0").unwrap(), folder)
    }

    fn with_volume() -> Self {
        let kubelet = Self::new();
        fs::create_dir_all(kubelet.volume()).unwrap();
        kubelet
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn refusal<T: std::fmt::Debug>(result: Result<T, FolderError>) -> PodFileError {
    match result {
        Err(FolderError::Refused { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_are_kubernetes_own() {
    let root = Path::new("/var/lib/kubelet");
    for uid in ["", ".", "..", "../..", "a/b", "x", &"0".repeat(64), "0\0"] {
        let error = PodFolder::new(root, uid, "run").unwrap_err();
        assert_eq!(error.reason(), "PodFolderBadName", "{uid:?}");
    }
    for volume in ["", ".", "..", "a/b", "Run", "r\0", &"0".repeat(64)] {
        let error = PodFolder::new(root, UID, volume).unwrap_err();
        assert_eq!(error.reason(), "PodFolderBadName", "{volume:?}");
    }
    // The name is the UID of a static pod.
    assert!(PodFolder::new(root, "3c5d9bb0f3f5ba2d3f6a2d4b8a4c0d11", "disk-0").is_ok());
    for path in ["", "/etc/shadow", "../run/ready.json", "a//b", "a/./b", "a/", "a\0"] {
        let error = Kubelet::with_volume().folder().read(path, 1).unwrap_err();
        assert_eq!(error.reason(), "PodFolderBadName", "{path:?}");
    }
}

#[test]
fn small_files_are_read_up_to_the_limit() {
    let kubelet = Kubelet::with_volume();
    let folder = kubelet.folder();
    assert!(matches!(
        folder.read("ready.json", 4),
        Err(FolderError::NotThere { .. })
    ));
    fs::write(kubelet.volume().join("ready.json"), "1234").unwrap();
    assert_eq!(folder.read("ready.json", 4).unwrap(), b"1234");
    assert_eq!(refusal(folder.read("ready.json", 3)), PodFileError::TooLarge(3));
    let file = fs::File::create(kubelet.volume().join("ready.json")).unwrap();
    file.set_len(1 << 30).unwrap();
    assert_eq!(
        refusal(folder.read("ready.json", SMALL_FILE)),
        PodFileError::TooLarge(SMALL_FILE)
    );
}

#[test]
fn links_lead_nowhere() {
    let kubelet = Kubelet::with_volume();
    let (folder, volume) = (kubelet.folder(), kubelet.volume());
    fs::write(volume.join("real"), "inside").unwrap();
    fs::create_dir(volume.join("folder")).unwrap();
    fs::write(volume.join("folder/file"), "inside").unwrap();
    for (link, target) in [
        ("outside", "/etc/shadow"),
        ("inside", "real"),
        ("up", "../../../../.."),
        ("proc", "/proc/self/root"),
        ("libvirt", "folder"),
        ("itself", "itself"),
    ] {
        symlink(target, volume.join(link)).unwrap();
    }
    for path in [
        "outside",
        "inside",
        "up/pods",
        "proc/etc/shadow",
        "libvirt/file",
        "itself",
    ] {
        assert_eq!(refusal(folder.read(path, 100)), PodFileError::Link, "{path}");
        assert_eq!(refusal(folder.open_socket(path)), PodFileError::Link, "{path}");
    }
    // A hard link is an ordinary file, and can only refer to a file that the pod already has.
    fs::hard_link(volume.join("real"), volume.join("hard")).unwrap();
    assert_eq!(folder.read("hard", 100).unwrap(), b"inside");
}

#[test]
fn a_volume_that_is_a_link_is_not_followed() {
    let kubelet = Kubelet::new();
    let elsewhere = kubelet.0.join("elsewhere");
    fs::create_dir_all(&elsewhere).unwrap();
    fs::write(elsewhere.join("ready.json"), "x").unwrap();
    fs::create_dir_all(kubelet.volume().parent().unwrap()).unwrap();
    symlink(&elsewhere, kubelet.volume()).unwrap();
    assert_eq!(refusal(kubelet.folder().read("ready.json", 10)), PodFileError::Link);
}

#[test]
fn fifo_or_folder_is_not_opened_as_file_or_socket() {
    let kubelet = Kubelet::with_volume();
    let (folder, volume) = (kubelet.folder(), kubelet.volume());
    // Opening the FIFO for reading would block forever, because it has no writer.
    mkfifo(&volume.join("fifo"), Mode::S_IRWXU).unwrap();
    fs::create_dir(volume.join("folder")).unwrap();
    for path in ["fifo", "folder"] {
        assert_eq!(refusal(folder.read(path, 100)), PodFileError::NotFile, "{path}");
        assert_eq!(refusal(folder.open_socket(path)), PodFileError::NotSocket, "{path}");
    }
    assert_eq!(refusal(folder.read("fifo/below", 100)), PodFileError::NotInFolder);
    fs::write(volume.join("file"), "").unwrap();
    assert_eq!(refusal(folder.open_socket("file")), PodFileError::NotSocket);
}

#[tokio::test]
async fn socket_with_a_long_path_is_reached() {
    let kubelet = Kubelet::with_volume();
    let volume = fs::File::open(kubelet.volume()).unwrap();
    let listener = UnixListener::bind(format!("/proc/self/fd/{}/socket", volume.as_raw_fd())).unwrap();
    assert!(kubelet.volume().join("socket").as_os_str().len() > 107);
    let socket = kubelet.folder().open_socket("socket").unwrap();
    let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
    tokio::net::UnixStream::connect(path).await.unwrap();
    listener.accept().unwrap();
}

/// Returns the user that runs the tests. This user may change the owner of files to itself.
fn myself() -> u32 {
    nix::unistd::geteuid().as_raw()
}

#[test]
fn socket_exists_in_pod_folder_as_long_as_the_listener() {
    let kubelet = Kubelet::with_volume();
    let folder = kubelet.folder();
    let place = kubelet.volume().join("migration/memory.sock");
    for round in 0..3 {
        if round == 1 {
            // The file remains from a process that has ended. Any other file that is not a folder is treated in the
            // same way.
            fs::write(&place, "stale").unwrap();
        }
        let made = folder.listen("migration/memory.sock", myself()).unwrap();
        let socket = folder.open_socket("migration/memory.sock").unwrap();
        std::os::unix::net::UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        made.listener().unwrap().accept().unwrap();
        drop(made);
        assert!(!place.exists());
    }
    let made = folder.listen("migration/memory.sock", myself()).unwrap();
    // A file that the pod puts at the path of the socket is not removed.
    fs::remove_file(&place).unwrap();
    fs::write(&place, "the pod's").unwrap();
    drop(made);
    assert_eq!(fs::read(&place).unwrap(), b"the pod's");
}

#[test]
fn a_socket_for_the_pod_is_made_nowhere_else() {
    let kubelet = Kubelet::with_volume();
    let (folder, volume) = (kubelet.folder(), kubelet.volume());
    for bad in ["memory.sock", "a/b/c", "../x/y", "/etc/x", "migration/.."] {
        let error = folder.listen(bad, myself()).unwrap_err();
        assert_eq!(error.reason(), "PodFolderBadName", "{bad}");
    }
    let outside = kubelet.0.join("outside");
    fs::create_dir(&outside).unwrap();
    symlink(&outside, volume.join("migration")).unwrap();
    assert_eq!(refusal(folder.listen("migration/x", myself())), PodFileError::Link);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    fs::write(volume.join("file"), "").unwrap();
    assert_eq!(refusal(folder.listen("file/x", myself())), PodFileError::NotInFolder);
    fs::create_dir_all(volume.join("folder/x")).unwrap();
    assert_eq!(refusal(folder.listen("folder/x", myself())), PodFileError::NotSocket);
    // A link at the path of the socket is replaced, not followed.
    symlink(outside.join("x"), volume.join("folder/y")).unwrap();
    let made = folder.listen("folder/y", myself()).unwrap();
    assert!(folder.open_socket("folder/y").is_ok());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    drop(made);
    // The pod does not exist.
    let gone = PodFolder::new(&kubelet.0, "00000000", "run").unwrap();
    assert!(matches!(
        gone.listen("migration/x", myself()),
        Err(FolderError::NotThere { .. })
    ));
}

#[test]
fn a_mark_is_made_in_the_pods_folder_and_nowhere_else() {
    let kubelet = Kubelet::with_volume();
    let (folder, volume) = (kubelet.folder(), kubelet.volume());
    for bad in ["left", "a/b/c", "../x/y", "/etc/x", "migration/.."] {
        assert_eq!(folder.mark(bad).unwrap_err().reason(), "PodFolderBadName", "{bad}");
    }
    assert!(matches!(
        folder.mark("migration/left"),
        Err(FolderError::NotThere { .. })
    ));
    let outside = kubelet.0.join("outside");
    fs::create_dir(&outside).unwrap();
    symlink(&outside, volume.join("migration")).unwrap();
    assert_eq!(refusal(folder.mark("migration/left")), PodFileError::Link);
    fs::remove_file(volume.join("migration")).unwrap();
    fs::create_dir(volume.join("migration")).unwrap();
    // A link at the path of the file is not followed, and a file of the pod is left unchanged.
    symlink(outside.join("x"), volume.join("migration/left")).unwrap();
    folder.mark("migration/left").unwrap();
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    fs::remove_file(volume.join("migration/left")).unwrap();
    for _ in 0..2 {
        folder.mark("migration/left").unwrap();
        assert_eq!(fs::read(volume.join("migration/left")).unwrap(), b"");
    }
    fs::write(volume.join("file"), "").unwrap();
    assert_eq!(refusal(folder.mark("file/x")), PodFileError::NotInFolder);
}

/// Starts a wait for a path that does not exist yet.
async fn waiting(folder: PodFolder, path: &'static str) -> JoinSet<Result<Vec<u8>, FolderError>> {
    let way = folder.walk(path).unwrap();
    assert!(!way.is_complete);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { folder.read_when_there(path, 100).await });
    tokio::task::yield_now().await;
    tasks
}

#[tokio::test]
async fn a_file_is_awaited_before_there_is_a_pod() {
    let kubelet = Kubelet::new();
    let mut tasks = waiting(kubelet.folder(), "libvirt/ready.json").await;
    // Creating and removing other pods does not end the wait.
    fs::create_dir(kubelet.0.join("pods/0-0-0")).unwrap();
    fs::remove_dir(kubelet.0.join("pods/0-0-0")).unwrap();
    let mut folder = kubelet.0.join("pods").join(UID);
    for name in ["volumes", "kubernetes.io~empty-dir", "run", "libvirt"] {
        fs::create_dir(&folder).unwrap();
        tokio::task::yield_now().await;
        folder.push(name);
    }
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("new"), "there").unwrap();
    fs::rename(folder.join("new"), folder.join("ready.json")).unwrap();
    assert_eq!(tasks.join_next().await.unwrap().unwrap().unwrap(), b"there");
}

#[tokio::test]
async fn vanished_pod_folder_is_awaited_again() {
    let kubelet = Kubelet::with_volume();
    let folder = kubelet.folder();
    let way = folder.walk("ready.json").unwrap();
    fs::remove_dir_all(kubelet.0.join("pods").join(UID)).unwrap();
    way.changed().await;
    let way = folder.walk("ready.json").unwrap();
    assert!(!way.is_complete);
    fs::create_dir_all(kubelet.volume()).unwrap();
    way.changed().await;
    fs::write(kubelet.volume().join("ready.json"), "there").unwrap();
    assert_eq!(folder.read_when_there("ready.json", 10).await.unwrap(), b"there");
}

#[tokio::test]
async fn watched_file_may_come_and_be_replaced() {
    let kubelet = Kubelet::with_volume();
    let folder = kubelet.folder();
    for text in ["one", "two"] {
        let watched = folder.watch("readiness.json").unwrap();
        fs::write(kubelet.volume().join("new"), text).unwrap();
        fs::rename(kubelet.volume().join("new"), kubelet.volume().join("readiness.json")).unwrap();
        watched.changed().await;
        assert_eq!(folder.read("readiness.json", 10).unwrap(), text.as_bytes());
    }
}

/// Starts many waiters, each for its own path, while all folders are created in another order.
#[tokio::test]
async fn no_wake_up_is_lost() {
    let kubelet = Kubelet::new();
    let mut tasks = JoinSet::new();
    let folders: Vec<PodFolder> = (0..50)
        .map(|number| PodFolder::new(&kubelet.0, &format!("{number:08}"), "run").unwrap())
        .collect();
    for folder in &folders {
        let folder = folder.clone();
        tasks.spawn(async move { folder.read_when_there("a/b", 100).await });
    }
    let root = kubelet.0.clone();
    let maker = tokio::task::spawn_blocking(move || {
        for number in (0..50).rev() {
            let pod = root.join("pods").join(format!("{number:08}"));
            // The folders are created, removed and created again without delay.
            for _ in 0..3 {
                fs::create_dir_all(pod.join("volumes/kubernetes.io~empty-dir/run/a")).unwrap();
                fs::remove_dir_all(&pod).unwrap();
            }
            let folder = pod.join("volumes/kubernetes.io~empty-dir/run/a");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("c"), "there").unwrap();
            fs::rename(folder.join("c"), folder.join("b")).unwrap();
        }
    });
    while let Some(read) = tasks.join_next().await {
        assert_eq!(read.unwrap().unwrap(), b"there");
    }
    maker.await.unwrap();
}

#[tokio::test]
async fn invalid_pod_file_is_refused_without_wait() {
    let kubelet = Kubelet::with_volume();
    let folder = kubelet.folder();
    symlink("/etc", kubelet.volume().join("libvirt")).unwrap();
    assert_eq!(
        refusal(folder.read_when_there("libvirt/passwd", 100).await),
        PodFileError::Link
    );
    symlink("/etc/shadow", kubelet.volume().join("ready.json")).unwrap();
    assert_eq!(
        refusal(folder.read_when_there("ready.json", 100).await),
        PodFileError::Link
    );
    mkfifo(&kubelet.volume().join("fifo"), Mode::S_IRWXU).unwrap();
    assert_eq!(
        refusal(folder.read_when_there("fifo", 100).await),
        PodFileError::NotFile
    );
    assert_eq!(refusal(folder.appeared("fifo/x").await), PodFileError::NotInFolder);
    // The link appears during the wait.
    let mut tasks = waiting(folder, "late").await;
    symlink("/etc/shadow", kubelet.volume().join("late")).unwrap();
    assert_eq!(refusal(tasks.join_next().await.unwrap().unwrap()), PodFileError::Link);
    // The kubelet has no pods folder.
    let nowhere = PodFolder::new(Path::new("/nowhere"), UID, "run").unwrap();
    assert!(matches!(
        nowhere.appeared("x").await,
        Err(FolderError::NotThere { path }) if path == Path::new("/nowhere/pods")
    ));
}

/// Checks that a wait that was dropped leaves no watch.
#[tokio::test]
async fn watches_end_with_the_wait() {
    // Other tests watch folders at the same time, but not the folders of this pod.
    const OWN: &str = "77777777";
    let kubelet = Kubelet::new();
    let folder = PodFolder::new(&kubelet.0, OWN, "run").unwrap();
    let ways: Vec<_> = (0..20).map(|_| folder.walk("x").unwrap()).collect();
    assert_eq!(waiters_for(OWN), 20);
    drop(ways);
    assert_eq!(waiters_for(OWN), 0);
    let given_up = tokio::time::timeout(Duration::ZERO, folder.appeared("x")).await;
    assert!(given_up.is_err());
    assert_eq!(waiters_for(OWN), 0);
    // The kernel ends the watch of a removed folder.
    fs::create_dir(kubelet.0.join("pods").join(OWN)).unwrap();
    let way = folder.walk("x").unwrap();
    assert_eq!(waiters_for(OWN), 1);
    fs::remove_dir(kubelet.0.join("pods").join(OWN)).unwrap();
    way.changed().await;
    drop(way);
    assert_eq!(waiters_for(OWN), 0);
}

#[tokio::test]
async fn removal_of_the_pods_folder_ends_the_wait() {
    const OWN: &str = "99999999";
    let kubelet = Kubelet::new();
    let folder = PodFolder::new(&kubelet.0, OWN, "run").unwrap();
    folder.disappeared().await.unwrap();
    fs::create_dir(kubelet.0.join("pods").join(OWN)).unwrap();
    let removed = async {
        while waiters_for(OWN) == 0 {
            tokio::task::yield_now().await;
        }
        fs::remove_dir(kubelet.0.join("pods").join(OWN)).unwrap();
    };
    let (gone, ()) = tokio::join!(folder.disappeared(), removed);
    gone.unwrap();
    assert_eq!(waiters_for(OWN), 0);
    let nowhere = PodFolder::new(Path::new("/nowhere"), OWN, "run").unwrap();
    assert!(matches!(nowhere.disappeared().await, Err(FolderError::NotThere { .. })));
}

/// Writes a version of a Secret as the kubelet does.
fn publish(folder: &Path, version: &str, files: &[(&str, &[u8])]) {
    fs::create_dir(folder.join(version)).unwrap();
    for (name, content) in files {
        fs::write(folder.join(version).join(name), content).unwrap();
    }
    symlink(version, folder.join("..data_tmp")).unwrap();
    fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
}

#[tokio::test]
async fn secret_is_read_and_the_next_version_is_noticed() {
    let kubelet = Kubelet::new();
    let (secret, folder) = kubelet.secret();
    assert!(matches!(secret.read(), Err(FolderError::NotThere { .. })));
    let mut watched = secret.watch().unwrap();
    for (version, content) in [("..1", b"one".to_vec()), ("..2", b"\xff".to_vec())] {
        publish(&folder, version, &[("root", &content), ("guest", b"")]);
        watched.changed().await;
        watched = secret.watch().unwrap();
        let expected = BTreeMap::from([("guest".to_owned(), Vec::new()), ("root".to_owned(), content)]);
        assert_eq!(secret.read().unwrap(), expected);
    }
}

#[test]
fn links_out_of_a_secret_are_not_followed() {
    let kubelet = Kubelet::new();
    let (secret, folder) = kubelet.secret();
    fs::write(kubelet.0.join("host"), "host").unwrap();
    publish(&folder, "..1", &[]);
    symlink(kubelet.0.join("host"), folder.join("..1/key")).unwrap();
    assert_eq!(refusal(secret.read()), PodFileError::Link);
    fs::remove_file(folder.join("..data")).unwrap();
    symlink(&kubelet.0, folder.join("..data")).unwrap();
    assert_eq!(refusal(secret.read()), PodFileError::Link);
}

#[test]
fn secret_that_is_too_large_is_refused() {
    let kubelet = Kubelet::new();
    let (secret, folder) = kubelet.secret();
    let half = vec![0; 600 << 10];
    publish(&folder, "..1", &[("a", &half), ("b", &half)]);
    assert!(matches!(refusal(secret.read()), PodFileError::TooLarge(_)));
}
