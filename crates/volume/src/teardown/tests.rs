use rustix::mount::{MountFlags, mount, mount_bind};

use super::*;

#[test]
fn everything_is_unmounted_and_nothing_removed_through_a_mount() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("kept");
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("precious"), "x").unwrap();
    let pod = dir.path().join("pod");
    let (volume, part) = (pod.join("volumes/a/v"), pod.join("volume-subpaths/v/c/0"));
    for path in [&volume, &part, &pod.join("containers/c")] {
        fs::create_dir_all(path).unwrap();
    }
    mount("tmpfs", &volume, "tmpfs", MountFlags::empty(), None).unwrap();
    fs::create_dir(volume.join("sub")).unwrap();
    mount_bind(volume.join("sub"), &part).unwrap();
    // What a container with Bidirectional propagation leaves in its volume.
    mount_bind(&kept, volume.join("sub")).unwrap();
    // Mounted over another.
    mount("tmpfs", &volume, "tmpfs", MountFlags::empty(), None).unwrap();
    tear_down(&pod, &Progress::default()).unwrap();
    assert_eq!(fs::read_to_string(kept.join("precious")).unwrap(), "x");
    let left: Vec<_> =
        fs::read_dir(&pod).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(left, ["containers"]);
    assert_eq!(Host::default().mounts().unwrap().at_or_below(&pod).count(), 0);
    tear_down(&pod, &Progress::default()).unwrap();
    tear_down(&dir.path().join("none"), &Progress::default()).unwrap();
}

#[test]
fn what_is_in_use_stays_whole() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().join("volumes/a/v");
    fs::create_dir_all(&volume).unwrap();
    mount("tmpfs", &volume, "tmpfs", MountFlags::empty(), None).unwrap();
    fs::write(volume.join("data"), "x").unwrap();
    let open = fs::File::open(volume.join("data")).unwrap();
    let error = tear_down(dir.path(), &Progress::default()).unwrap_err();
    assert!(error.to_string().contains("cannot unmount"), "{error}");
    assert!(volume.join("data").exists());
    drop(open);
    // A child that another test is just starting has it open until it runs its program.
    let begun = std::time::Instant::now();
    while let Err(error) = tear_down(dir.path(), &Progress::default()) {
        assert!(begun.elapsed().as_secs() < 60, "{error}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(!volume.exists());
}
