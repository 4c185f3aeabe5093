//! Tests of disks that are prepared with the real qemu-img and read by independent programs.

use std::{
    fs,
    os::unix::fs::{FileExt, symlink},
    path::Path,
    process::Command,
};

use drydock_api::launcher::{
    CloudInit, CloudInitText, DiskFormat, DiskSource, GuestProbes, LauncherDisk, PodGuest, PreparedDisk,
};
use tempfile::TempDir;

use super::{DiskRefusal, prepare};
use crate::folders::Folders;

const MIB: u64 = 1024 * 1024;

struct Pod {
    root: TempDir,
}

impl Pod {
    fn new() -> Self {
        let pod = Self {
            root: TempDir::new().unwrap(),
        };
        fs::create_dir_all(pod.folders().disks()).unwrap();
        pod
    }

    fn folders(&self) -> Folders {
        Folders::below(self.root.path())
    }

    /// Creates a file in the image of the volume `root`.
    fn in_image(&self, path: &str, content: &[u8]) -> std::path::PathBuf {
        let path = self.folders().image("root").join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    fn prepare(&self, source: DiskSource) -> Result<PreparedDisk, (&'static str, String)> {
        let guest = PodGuest {
            domain: "d".into(),
            host_uuid: String::new(),
            grace_period_seconds: 0,
            disks: vec![LauncherDisk {
                name: "root".into(),
                source,
            }],
            probes: GuestProbes::default(),
        };
        match prepare(&guest, &self.folders()) {
            Ok(mut disks) => Ok(disks.remove(0)),
            Err(refused) => Err((refused.refusal.reason(), refused.to_string())),
        }
    }

    fn container_disk(&self) -> Result<PreparedDisk, (&'static str, String)> {
        self.prepare(DiskSource::ContainerDisk { path: None, size: None })
    }

    fn refusal(&self) -> &'static str {
        self.container_disk().unwrap_err().0
    }
}

fn qemu_img(arguments: &[&str]) -> String {
    let output = Command::new("qemu-img").args(arguments).output().expect("qemu-img");
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn info(path: impl AsRef<Path>) -> serde_json::Value {
    let path = path.as_ref().to_str().unwrap();
    serde_json::from_str(&qemu_img(&["info", "--output=json", path])).unwrap()
}

#[test]
fn a_layer_is_put_above_an_image_of_either_format() {
    for format in ["raw", "qcow2"] {
        let pod = Pod::new();
        let image = pod.in_image("/disk/fedora.img", b"");
        qemu_img(&["create", "-q", "-f", format, image.to_str().unwrap(), "3M"]);
        let before = fs::read(&image).unwrap();
        let disk = pod.container_disk().unwrap();
        assert_eq!(
            (disk.format, disk.virtual_size),
            (DiskFormat::Qcow2, 3 * MIB),
            "{format}"
        );
        let backing = disk.backing.unwrap();
        assert_eq!((backing.format.as_str(), backing.virtual_size), (format, 3 * MIB));
        assert_eq!(Path::new(&backing.path), image);
        let info = info(&disk.path);
        assert_eq!(info["format"], "qcow2");
        assert_eq!(info["virtual-size"], 3 * MIB);
        assert_eq!(info["backing-filename"], image.to_str().unwrap());
        assert_eq!(info["backing-filename-format"], format);
        assert_eq!(fs::read(&image).unwrap(), before, "the image is only read");
    }
}

#[test]
fn raw_image_with_a_partial_sector_gives_whole_sectors() {
    let pod = Pod::new();
    pod.in_image("/disk/a.img", &[7; 700]);
    let disk = pod.container_disk().unwrap();
    assert_eq!(disk.virtual_size, 1024);
    assert_eq!(info(&disk.path)["virtual-size"], 1024);
}

#[test]
fn image_disk_is_the_only_file_or_the_file_at_the_path() {
    let pod = Pod::new();
    assert_eq!(pod.refusal(), "NoDiskInImage", "no such image");
    pod.in_image("/etc/a", b"");
    assert_eq!(pod.refusal(), "NoDiskInImage");
    pod.in_image("/disk/.hidden", b"x");
    assert_eq!(pod.refusal(), "NoDiskInImage");
    pod.in_image("/disk/a.img", &[0; 512]);
    pod.in_image("/disk/b.img", &[0; 1024]);
    let (reason, text) = pod.container_disk().unwrap_err();
    assert_eq!(reason, "SeveralDisksInImage");
    assert!(text.contains("a.img, b.img"), "{text}");
    let named = |path: &str| {
        pod.prepare(DiskSource::ContainerDisk {
            path: Some(path.into()),
            size: None,
        })
    };
    assert_eq!(named("/disk/b.img").unwrap().virtual_size, 1024);
    assert_eq!(named("/disk/c.img").unwrap_err().0, "NoDiskInImage");
    assert_eq!(named("/disk").unwrap_err().0, "NotADisk");
}

#[test]
fn links_stay_in_the_image() {
    let pod = Pod::new();
    let real = pod.in_image("/data/real.img", &[0; 512]);
    fs::create_dir(pod.folders().image("root").join("disk")).unwrap();
    let link = pod.folders().image("root").join("disk/disk.img");
    symlink("/data/real.img", &link).unwrap();
    assert_eq!(Path::new(&pod.container_disk().unwrap().backing.unwrap().path), real);
    // The file is in the pod but not in the image.
    let outside = pod.root.path().join("outside");
    fs::write(&outside, [0; 512]).unwrap();
    for target in [outside.as_path(), "../../../outside".as_ref()] {
        fs::remove_file(&link).unwrap();
        symlink(target, &link).unwrap();
        assert_eq!(pod.refusal(), "NoDiskInImage", "{}", target.display());
    }
}

#[test]
fn images_that_name_other_files_are_refused() {
    let pod = Pod::new();
    let image = pod.in_image("/disk/a.qcow2", b"");
    let (path, other) = (image.to_str().unwrap(), pod.root.path().join("other"));
    let other = other.to_str().unwrap();
    qemu_img(&["create", "-q", "-f", "raw", other, "1M"]);
    qemu_img(&["create", "-q", "-f", "qcow2", "-F", "raw", "-b", other, path]);
    assert_eq!(pod.refusal(), "ImageNamesOtherFile");
    qemu_img(&[
        "create",
        "-q",
        "-f",
        "qcow2",
        "-o",
        &format!("data_file={other}"),
        path,
        "1M",
    ]);
    assert_eq!(pod.refusal(), "ImageNamesOtherFile");
    // The encryption method is set in the header directly, because encrypting with qemu-img runs a benchmark that may
    // fail.
    qemu_img(&["create", "-q", "-f", "qcow2", path, "1M"]);
    fs::OpenOptions::new()
        .write(true)
        .open(&image)
        .unwrap()
        .write_all_at(&2_u32.to_be_bytes(), 32)
        .unwrap();
    assert_eq!(pod.refusal(), "EncryptedImage");
}

#[test]
fn images_of_other_formats_are_refused_by_name() {
    for (format, name) in [
        ("vmdk", "VMDK"),
        ("vhdx", "VHDX"),
        ("vdi", "VDI"),
        ("vpc", "VHD"),
        ("qed", "QED"),
    ] {
        let pod = Pod::new();
        let image = pod.in_image("/disk/a.img", b"");
        qemu_img(&["create", "-q", "-f", format, image.to_str().unwrap(), "8M"]);
        let (reason, text) = pod.container_disk().unwrap_err();
        assert_eq!(reason, "UnknownImageFormat", "{format}");
        assert!(text.contains(name), "{text}");
    }
}

#[test]
fn damaged_images_are_refused() {
    let pod = Pod::new();
    let image = pod.in_image("/disk/a.img", b"QFI\xfb\0\0");
    assert_eq!(pod.refusal(), "DamagedImage");
    qemu_img(&["create", "-q", "-f", "qcow2", image.to_str().unwrap(), "1M"]);
    for (at, bytes) in [
        (4, &[0_u8, 0, 0, 9][..]),
        (24, &[0; 8]),
        (24, &[0xff; 8]),
        (24, &[0x7f; 8]),
    ] {
        let mut damaged = fs::read(&image).unwrap();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        let whole = fs::read(&image).unwrap();
        fs::write(&image, damaged).unwrap();
        assert!(["DamagedImage", "DiskNotCreated"].contains(&pod.refusal()), "{at}");
        fs::write(&image, whole).unwrap();
    }
    fs::write(&image, b"").unwrap();
    assert_eq!(pod.refusal(), "DiskEmpty");
}

#[test]
fn an_empty_disk_takes_no_space_yet() {
    let pod = Pod::new();
    let disk = pod.prepare(DiskSource::EmptyDisk { capacity: 5 * MIB + 1 }).unwrap();
    assert_eq!(disk.virtual_size, 5 * MIB + 512);
    let info = info(&disk.path);
    assert_eq!(
        (&info["format"], &info["virtual-size"]),
        (&"qcow2".into(), &(5 * MIB + 512).into())
    );
    assert!(info["actual-size"].as_u64().unwrap() < MIB, "{info}");
    assert_eq!(
        pod.prepare(DiskSource::EmptyDisk { capacity: 0 }).unwrap_err().0,
        "DiskNotCreated"
    );
    assert_eq!(
        pod.prepare(DiskSource::EmptyDisk { capacity: u64::MAX }).unwrap_err().0,
        "DiskNotCreated"
    );
}

#[test]
fn volume_disk_is_raw_regardless_of_content() {
    let pod = Pod::new();
    let volume = pod.folders().volume("root");
    fs::create_dir_all(&volume).unwrap();
    let path = volume.join("disk.img");
    // A guest may write this content to its own disk.
    fs::write(&path, [b"QFI\xfb".as_slice(), &[0; 2044]].concat()).unwrap();
    let disk = pod.prepare(DiskSource::Filesystem {}).unwrap();
    assert_eq!(
        (disk.format, disk.virtual_size, disk.backing),
        (DiskFormat::Raw, 2048, None)
    );
    assert_eq!(disk.path, path.to_str().unwrap());
    fs::remove_file(&path).unwrap();
    symlink("/etc/passwd", &path).unwrap();
    assert_eq!(pod.prepare(DiskSource::Filesystem {}).unwrap_err().0, "NotADisk");
}

#[test]
fn disk_of_an_empty_volume_is_sparse_with_volume_size() {
    use std::os::unix::fs::MetadataExt;
    let pod = Pod::new();
    let volume = pod.folders().volume("root");
    fs::create_dir_all(&volume).unwrap();
    let disk = pod.prepare(DiskSource::Filesystem {}).unwrap();
    let found = fs::metadata(&disk.path).unwrap();
    assert_eq!((found.len(), found.blocks()), (disk.virtual_size, 0));
    assert!(disk.virtual_size > 0 && disk.virtual_size.is_multiple_of(MIB));
    // The next pod finds the disk unchanged.
    let file = fs::OpenOptions::new().read(true).write(true).open(&disk.path).unwrap();
    file.write_all_at(b"written", 512).unwrap();
    assert_eq!(pod.prepare(DiskSource::Filesystem {}).unwrap(), disk);
    let mut read = [0; 7];
    file.read_exact_at(&mut read, 512).unwrap();
    assert_eq!(&read, b"written");
}

#[test]
fn disks_for_migrated_content_keep_the_size() {
    let pod = Pod::new();
    pod.in_image("/disk/a.img", &[0; 1024]);
    let layer = pod
        .prepare(DiskSource::ContainerDisk {
            path: None,
            size: Some(3 * MIB),
        })
        .unwrap();
    assert_eq!(
        (layer.virtual_size, info(&layer.path)["virtual-size"].as_u64()),
        (3 * MIB, Some(3 * MIB))
    );
    assert_eq!(layer.backing.map(|image| image.virtual_size), Some(1024));
    let pod = Pod::new();
    let blank = pod.prepare(DiskSource::Blank { size: 3 * MIB }).unwrap();
    assert_eq!((blank.format, blank.virtual_size), (DiskFormat::Raw, 3 * MIB));
    assert_eq!(fs::metadata(&blank.path).unwrap().len(), 3 * MIB);
    // Existing content is never overwritten.
    assert!(pod.prepare(DiskSource::Blank { size: 3 * MIB }).is_err());
    assert_eq!(
        Pod::new().prepare(DiskSource::Blank { size: 0 }).unwrap_err().0,
        "DiskEmpty"
    );
}

#[test]
fn a_file_is_no_block_volume() {
    let pod = Pod::new();
    assert_eq!(pod.prepare(DiskSource::Block {}).unwrap_err().0, "DiskUnreadable");
    fs::create_dir_all(pod.folders().device("root").parent().unwrap()).unwrap();
    fs::write(pod.folders().device("root"), b"x").unwrap();
    assert_eq!(pod.prepare(DiskSource::Block {}).unwrap_err().0, "NotADisk");
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let pod = Pod::new();
    for name in ["", "..", "a/b", "../../etc"] {
        let guest = PodGuest {
            domain: "d".into(),
            host_uuid: String::new(),
            grace_period_seconds: 0,
            disks: vec![LauncherDisk {
                name: name.into(),
                source: DiskSource::EmptyDisk { capacity: MIB },
            }],
            probes: GuestProbes::default(),
        };
        let refused = prepare(&guest, &pod.folders()).unwrap_err();
        assert!(matches!(refused.refusal, DiskRefusal::VolumeName), "{name:?}");
    }
}

/// Reads a file of a FAT volume with mtools.
fn mtype(volume: &str, file: &str) -> Vec<u8> {
    let output = Command::new("mtype")
        .args(["-i", volume, &format!("::/{file}")])
        .output()
        .expect("mtools");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn listing(volume: &str) -> String {
    let output = Command::new("mdir")
        .args(["-b", "-i", volume, "::/"])
        .output()
        .expect("mtools");
    String::from_utf8(output.stdout).unwrap()
}

fn blkid(volume: &str, tag: &str) -> String {
    let output = Command::new("blkid")
        .args(["-p", "-o", "value", "-s", tag, volume])
        .output()
        .expect("blkid");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn cloud_init_finds_the_volume_with_every_byte() {
    let user_data = format!("#cloud-config\n# {}\n", "é\n".repeat(20_000));
    let data = CloudInit {
        instance_id: "i-1".into(),
        hostname: "vm: \"1\"".into(),
        user_data: Some(CloudInitText::Plain(user_data.clone())),
        network_data: Some(CloudInitText::Base64("dmVyc2lv\nbjogMgo=".into())),
        ..CloudInit::default()
    };
    let pod = Pod::new();
    let disk = pod.prepare(DiskSource::CloudInitNoCloud(data.clone())).unwrap();
    assert_eq!(
        (disk.format, disk.virtual_size),
        (DiskFormat::Raw, fs::metadata(&disk.path).unwrap().len())
    );
    assert_eq!(blkid(&disk.path, "LABEL"), "cidata");
    assert_eq!(blkid(&disk.path, "TYPE"), "vfat");
    assert_eq!(mtype(&disk.path, "user-data"), user_data.as_bytes());
    assert_eq!(mtype(&disk.path, "network-config"), b"version: 2\n");
    let meta: serde_json::Value = serde_json::from_slice(&mtype(&disk.path, "meta-data")).unwrap();
    assert_eq!(
        meta,
        serde_json::json!({"instance-id": "i-1", "local-hostname": "vm: \"1\""})
    );
    // The target of a migration creates an identical volume.
    let again = Pod::new().prepare(DiskSource::CloudInitNoCloud(data.clone()));
    let other = Pod::new();
    let other_disk = other.prepare(DiskSource::CloudInitNoCloud(data)).unwrap();
    assert!(again.is_ok());
    assert_eq!(fs::read(&disk.path).unwrap(), fs::read(&other_disk.path).unwrap());
}

#[test]
fn config_drive_has_the_files_of_openstack() {
    let pod = Pod::new();
    let data = CloudInit {
        instance_id: "i-1".into(),
        hostname: "vm".into(),
        user_data: Some(CloudInitText::Plain("#cloud-config\n".into())),
        network_data: Some(CloudInitText::Plain("{}".into())),
        config_drive_uuid: Some("5d307ca9".into()),
        key_secrets: 0,
    };
    let disk = pod.prepare(DiskSource::CloudInitNoCloud(data)).unwrap();
    assert_eq!(blkid(&disk.path, "LABEL"), "config-2");
    let file = |name: &str| mtype(&disk.path, &format!("openstack/latest/{name}"));
    assert_eq!(file("user_data"), b"#cloud-config\n");
    assert_eq!(file("network_data.json"), b"{}");
    let meta: serde_json::Value = serde_json::from_slice(&file("meta_data.json")).unwrap();
    assert_eq!(
        meta,
        serde_json::json!({"uuid": "5d307ca9", "instance_id": "i-1", "hostname": "vm", "local_hostname": "vm"})
    );
}

/// Puts files into a folder as the kubelet mounts a Secret.
///
/// Each file is a link into a folder that the kubelet can replace atomically.
fn mount(folder: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(folder.join("..2026")).unwrap();
    symlink("..2026", folder.join("..data")).unwrap();
    for (name, content) in files {
        fs::write(folder.join("..2026").join(name), content).unwrap();
        symlink(Path::new("..data").join(name), folder.join(name)).unwrap();
    }
}

#[test]
fn files_of_an_object_are_on_a_labelled_file_system() {
    let source = || DiskSource::Files {
        label: "unattendCfg".into(),
    };
    let content = "x".repeat(5000);
    let make = || {
        let pod = Pod::new();
        let files = [
            ("Unattend.xml", content.as_str()),
            ("unattend.xml", "other"),
            ("a.b-c_d", ""),
        ];
        mount(&pod.folders().secrets("root").join("files"), &files);
        let disk = pod.prepare(source()).unwrap();
        (pod, disk)
    };
    let (pod, disk) = make();
    assert_eq!(blkid(&disk.path, "TYPE"), "iso9660");
    assert_eq!(blkid(&disk.path, "LABEL"), "unattendCfg");
    assert_eq!(
        (disk.format, disk.virtual_size),
        (DiskFormat::Raw, fs::metadata(&disk.path).unwrap().len())
    );
    let extracted = pod.root.path().join("extracted");
    let status = Command::new("xorriso")
        .args(["-osirrox", "on", "-indev", &disk.path, "-extract", "/"])
        .arg(&extracted)
        .output()
        .expect("xorriso");
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    let mut names: Vec<_> = fs::read_dir(&extracted)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["Unattend.xml", "a.b-c_d", "unattend.xml"]);
    assert_eq!(fs::read_to_string(extracted.join("Unattend.xml")).unwrap(), content);
    assert_eq!(fs::read_to_string(extracted.join("unattend.xml")).unwrap(), "other");
    // The target of a migration creates an identical disk if the guest cannot write to it.
    assert!(fs::read(&disk.path).unwrap() == fs::read(make().1.path).unwrap());

    // An optional object does not exist.
    let pod = Pod::new();
    fs::create_dir_all(pod.folders().secrets("root").join("files")).unwrap();
    assert_eq!(blkid(&pod.prepare(source()).unwrap().path, "LABEL"), "unattendCfg");
    assert_eq!(Pod::new().prepare(source()).unwrap_err().0, "DiskUnreadable");
}

#[test]
fn public_keys_of_secrets_are_in_the_metadata() {
    for (config_drive_uuid, file, name) in [
        (None, "meta-data", "public-keys"),
        (
            Some("5d307ca9".to_owned()),
            "openstack/latest/meta_data.json",
            "public_keys",
        ),
    ] {
        let pod = Pod::new();
        let secrets = pod.folders().secrets("root");
        for (index, keys) in [
            [("b", "ssh-ed25519 B b\n"), ("a", "ssh-rsa A a")],
            [("a", "ssh-rsa C c"), ("z", " ")],
        ]
        .iter()
        .enumerate()
        {
            mount(&secrets.join(format!("keys{index}")), keys);
        }
        let data = |key_secrets| CloudInit {
            config_drive_uuid: config_drive_uuid.clone(),
            key_secrets,
            ..CloudInit::default()
        };
        let disk = pod.prepare(DiskSource::CloudInitNoCloud(data(2))).unwrap();
        let meta: serde_json::Value = serde_json::from_slice(&mtype(&disk.path, file)).unwrap();
        assert_eq!(
            meta[name],
            serde_json::json!({"0": "ssh-rsa A a", "1": "ssh-ed25519 B b", "2": "ssh-rsa C c"})
        );
        let refused = Pod::new().prepare(DiskSource::CloudInitNoCloud(data(1)));
        assert_eq!(refused.unwrap_err().0, "DiskUnreadable");
    }
}

#[test]
fn cloud_init_without_network_data_has_no_network_file() {
    let pod = Pod::new();
    let disk = pod.prepare(DiskSource::CloudInitNoCloud(CloudInit::default())).unwrap();
    let mut names: Vec<String> = listing(&disk.path)
        .lines()
        .map(|name| name.replace("::/", ""))
        .collect();
    names.sort();
    assert_eq!(names, ["meta-data", "user-data"]);
    assert_eq!(mtype(&disk.path, "user-data"), b"");
}

#[test]
fn secret_keys_may_have_either_spelling() {
    for (user, network) in [("userdata", "networkdata"), ("userData", "networkData")] {
        let pod = Pod::new();
        let data = || CloudInit {
            user_data: Some(CloudInitText::Secret {
                name: Some("login".into()),
            }),
            network_data: Some(CloudInitText::Secret { name: None }),
            ..CloudInit::default()
        };
        let (reason, message) = pod.prepare(DiskSource::CloudInitNoCloud(data())).unwrap_err();
        assert_eq!(reason, "SecretWithoutData");
        assert!(
            message.contains("Secret login of the guest's namespace has no key userdata or userData"),
            "{message}"
        );
        for (folder, key) in [("user", user), ("network", network)] {
            let folder = pod.folders().secrets("root").join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(key), key).unwrap();
        }
        let disk = pod.prepare(DiskSource::CloudInitNoCloud(data())).unwrap();
        assert_eq!(mtype(&disk.path, "user-data"), user.as_bytes());
        assert_eq!(mtype(&disk.path, "network-config"), network.as_bytes());
    }
}

#[test]
fn oversized_or_invalid_cloud_init_data_is_refused() {
    let pod = Pod::new();
    let with = |text| {
        pod.prepare(DiskSource::CloudInitNoCloud(CloudInit {
            user_data: Some(text),
            ..CloudInit::default()
        }))
        .unwrap_err()
        .0
    };
    assert_eq!(with(CloudInitText::Base64("?".into())), "InvalidBase64");
    assert_eq!(with(CloudInitText::Plain("x".repeat(9 << 20))), "TooMuchCloudInitData");
}
