use std::os::unix::fs::PermissionsExt;

use nix::unistd::{geteuid, mkdtemp};

use super::*;

/// A program that any user may run, in its own folder. It is removed at the end of the test.
struct Program(PathBuf);

impl Program {
    fn new(script: &str) -> Self {
        let folder = mkdtemp(&std::env::temp_dir().join("drydock-program-XXXXXX")).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let path = folder.join("libvirtd");
        fs::write(
            &path,
            format!("#!/usr/bin/env python3\nimport os, socket, sys, time\n{script}"),
        )
        .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(folder)
    }

    fn start(&self) -> PrivateLibvirtd {
        PrivateLibvirtd::start(&self.0.join("libvirtd"), &self.0).unwrap()
    }

    /// Returns the folders of libvirtd that were left behind.
    fn left(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir())
            .collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn is_running(pid: i32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

const LISTEN: &str = "s = socket.socket(socket.AF_UNIX)
s.bind(os.environ['XDG_RUNTIME_DIR'] + '/libvirt/libvirt-sock')
s.listen()
";

#[test]
fn libvirtd_is_open_once_the_socket_listens() {
    let program = Program::new(&format!("time.sleep(0.1)\n{LISTEN}time.sleep(60)"));
    let daemon = program.start();
    daemon.wait_until_open(Duration::from_secs(20)).unwrap();
    let pid = daemon.pid();
    assert!(is_running(pid));
    drop(daemon);
    assert!(!is_running(pid));
    assert_eq!(program.left(), [] as [PathBuf; 0]);
}

#[test]
fn libvirtd_exit_at_start_is_reported() {
    let program = Program::new("sys.exit('libvirtd: error : no such driver')");
    let problem = program.start().wait_until_open(Duration::from_secs(20)).unwrap_err();
    assert_eq!(problem.kind(), ProblemReason::LibvirtdExited);
    let text = problem.to_string();
    assert_eq!(
        text,
        "libvirtd ended before its socket was open: exit code 1: libvirtd: error : no such driver"
    );
    assert_eq!(program.left(), [] as [PathBuf; 0]);
}

#[test]
fn libvirtd_without_socket_is_reported_after_timeout() {
    let program = Program::new("time.sleep(60)");
    let daemon = program.start();
    let problem = daemon.wait_until_open(Duration::from_millis(300)).unwrap_err();
    assert_eq!(problem.kind(), ProblemReason::LibvirtdSocketNotOpened);
    assert!(daemon.end_within(Duration::ZERO).is_none());
}

#[test]
fn socket_without_listener_is_not_open() {
    let program = Program::new(&format!("{}time.sleep(60)", LISTEN.replace("s.listen()\n", "")));
    let daemon = program.start();
    // On a busy machine, the script may need longer than the timeout to bind the socket.
    while !daemon.socket.exists() {
        thread::yield_now();
    }
    let problem = daemon.wait_until_open(Duration::from_millis(300)).unwrap_err();
    assert_eq!(problem.kind(), ProblemReason::LibvirtdSocketNotOpened);
    assert!(problem.to_string().contains("refused"), "{problem}");
}

#[test]
fn background_processes_end_with_libvirtd() {
    // The program ignores SIGTERM, and leaves a background process that also ignores it.
    let program = Program::new(&format!(
        "import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print('background', os.getpid(), flush=True)
        time.sleep(60)
    os._exit(0)
os.wait()
time.sleep(0.2)
{LISTEN}time.sleep(60)"
    ));
    let daemon = program.start();
    daemon.wait_until_open(Duration::from_secs(20)).unwrap();
    let log = fs::read_to_string(daemon.folder.join("log")).unwrap();
    let background: i32 = log.trim().strip_prefix("background ").unwrap().parse().unwrap();
    assert!(is_running(background));
    let pid = daemon.pid();
    drop(daemon);
    assert!(!is_running(pid) && !is_running(background));
}

#[test]
fn orphans_are_reaped_while_libvirtd_runs() {
    // libvirt waits for the complete end of a QEMU that it has ended.
    let program = Program::new(&format!(
        "if os.fork() == 0:
    os.setsid()
    child = os.fork()
    if child == 0:
        time.sleep(0.2)
        os._exit(0)
    print(child, flush=True)
    os._exit(0)
os.wait()
{LISTEN}time.sleep(60)"
    ));
    let daemon = program.start();
    daemon.wait_until_open(Duration::from_secs(20)).unwrap();
    let orphan: i32 = fs::read_to_string(daemon.folder.join("log"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    while is_running(orphan) && Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
    }
    assert!(!is_running(orphan), "a zombie is left");
}

#[test]
fn nothing_is_passed_on() {
    let program = Program::new("print(sorted(os.environ), os.getuid(), os.getgroups(), flush=True)");
    let problem = program
        .start()
        .wait_until_open(Duration::from_secs(20))
        .unwrap_err()
        .to_string();
    let names = "['HOME', 'LC_ALL', 'PATH', 'XDG_CACHE_HOME', 'XDG_CONFIG_HOME', 'XDG_DATA_HOME', 'XDG_RUNTIME_DIR']";
    assert!(problem.contains(names), "{problem}");
    if geteuid().is_root() && Account::find().is_some() {
        assert!(!problem.contains("] 0 [") && problem.contains(" []"), "{problem}");
    }
}

#[test]
fn devices_are_for_all_there_and_only_there() {
    let kvm = Path::new("/dev/kvm");
    if !geteuid().is_root() || !kvm.exists() {
        eprintln!("skipped: devices_are_for_all_there_and_only_there: needs root and /dev/kvm");
        return;
    }
    let mode = || fs::metadata(kvm).unwrap().permissions().mode();
    let before = mode();
    let program = Program::new("print('opens', os.open('/dev/kvm', os.O_RDWR) > 0, flush=True)");
    let problem = program
        .start()
        .wait_until_open(Duration::from_secs(20))
        .unwrap_err()
        .to_string();
    assert!(problem.contains("opens True"), "{problem}");
    assert_eq!(mode(), before);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains("drydock-libvirtd"), "{mounts}");
}

#[test]
fn libvirtd_start_failure_is_reported() {
    let program = Program::new("");
    for (path, scratch) in [
        ("/nowhere/libvirtd", program.0.as_path()),
        ("/bin/sh", Path::new("/nowhere")),
    ] {
        let problem = PrivateLibvirtd::start(Path::new(path), scratch).unwrap_err();
        assert_eq!(problem.kind(), ProblemReason::LibvirtdNotStarted);
    }
    let deep = program.0.join("x".repeat(100));
    fs::create_dir(&deep).unwrap();
    let problem = PrivateLibvirtd::start(Path::new("/bin/sh"), &deep).unwrap_err();
    assert!(problem.to_string().contains("too long"), "{problem}");
    assert_eq!(fs::read_dir(&deep).unwrap().count(), 0);
}

#[test]
fn leftovers_of_a_killed_inspection_are_removed() {
    let program = Program::new("sys.exit()");
    let stale = program.0.join("drydock-libvirtd-stale");
    let busy = program.0.join("drydock-libvirtd-busy");
    let foreign = program.0.join("other");
    for folder in [&stale, &busy, &foreign] {
        fs::create_dir_all(folder.join("home")).unwrap();
        fs::write(folder.join("lock"), "").unwrap();
    }
    let lock = File::open(busy.join("lock")).unwrap();
    lock.lock().unwrap();
    let sleep = |home: PathBuf| Command::new("sleep").arg("60").env("HOME", home).spawn().unwrap();
    let mut left = sleep(stale.join("home"));
    let mut others = [sleep(busy.join("home")), sleep(stale.clone())];
    drop(program.start());
    assert!(!stale.exists() && busy.exists() && foreign.exists());
    assert!(left.try_wait().unwrap().is_some(), "it was ended");
    for other in &mut others {
        assert!(other.try_wait().unwrap().is_none(), "it was left alone");
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
