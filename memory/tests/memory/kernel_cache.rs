//! Assembled kernels on disk: found by the next process, despite any damage to the files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use millpond_memory::driver::sim::{SimDriver, SimOptions};
use millpond_memory::{ByteSize, Device, KernelCache, KernelCacheStatistics};

/// A kernel with a unique name.
fn ptx(name: &str) -> String {
    format!(".version 8.2\n.target sm_70\n.address_size 64\n.visible .entry {name}()\n{{\n    ret;\n}}\n")
}

/// Cache statistics of a process that loaded kernels of these names, and the number of texts its driver assembled.
fn process_with(options: SimOptions, folder: &Path, most: ByteSize, names: &[&str]) -> (KernelCacheStatistics, u64) {
    let driver = SimDriver::new(options);
    let device = Device::open(driver.clone(), 0).unwrap();
    let cache = Arc::new(KernelCache::open(folder, most).unwrap());
    device.keep_kernels(&cache).unwrap();
    for name in names {
        device.load_module(&ptx(name)).unwrap().kernel(name).unwrap();
    }
    assert_eq!(driver.take_findings(), vec![]);
    (cache.statistics(), driver.counters().texts_assembled)
}

fn process(folder: &Path, names: &[&str]) -> (KernelCacheStatistics, u64) {
    process_with(SimOptions::default(), folder, ByteSize::mib(1), names)
}

fn kernels(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn did(read: u64, assembled: u64, written: u64, refused: u64) -> KernelCacheStatistics {
    KernelCacheStatistics { read, assembled, written, refused }
}

#[test]
fn the_next_process_assembles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("a/b/kernels");
    assert_eq!(process(&kept, &["one", "two"]), (did(0, 2, 2, 0), 2));
    assert_eq!(process(&kept, &["two", "one"]), (did(2, 0, 0, 0), 0), "in any order");
    assert_eq!(process(&kept, &["two", "three"]), (did(1, 1, 1, 0), 1));
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(kernels(&kept).iter().all(|file| fs::metadata(file).unwrap().permissions().mode() & 0o777 == 0o600));
}

#[test]
fn another_build_of_the_driver_has_files_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (kept, most) = (folder.path().join("kernels"), ByteSize::mib(1));
    let newer = || SimOptions { version: SimOptions::default().version + 10, ..SimOptions::default() };
    assert_eq!(process(&kept, &["one"]).0, did(0, 1, 1, 0));
    assert_eq!(process_with(newer(), &kept, most, &["one"]).0, did(0, 1, 1, 0));
    assert_eq!(process_with(newer(), &kept, most, &["one"]).0, did(1, 0, 0, 0));
    assert_eq!(process(&kept, &["one"]).0, did(1, 0, 0, 0));
    assert_eq!(kernels(&kept).len(), 2);
}

#[test]
fn what_is_not_whole_is_assembled_and_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kernels");
    process(&kept, &["one"]);
    let file = kernels(&kept).remove(0);
    let whole = fs::read(&file).unwrap();
    let mut wrong = vec![vec![], b"of another program".to_vec(), [&whole[..], b"more"].concat()];
    // Truncated at every length, and with a bit flipped in every byte.
    for at in 0..whole.len() {
        let mut turned = whole.clone();
        turned[at] ^= 1 << (at % 8);
        wrong.extend([whole[..at].to_vec(), turned]);
    }
    for bytes in wrong {
        fs::write(&file, &bytes).unwrap();
        assert_eq!(process(&kept, &["one"]), (did(0, 1, 1, 1), 1), "{} bytes", bytes.len());
        assert_eq!(fs::read(&file).unwrap(), whole);
    }
    // A file under the name of another key, and a missing file.
    process(&kept, &["two"]);
    let other = kernels(&kept).into_iter().find(|known| *known != file).unwrap();
    fs::copy(&other, &file).unwrap();
    assert_eq!(process(&kept, &["one"]).0, did(0, 1, 1, 1));
    fs::remove_file(&file).unwrap();
    symlink(&other, &file).unwrap();
    assert_eq!(process(&kept, &["one"]).0, did(0, 1, 1, 0), "links are not followed");
    assert_eq!(fs::read(&file).unwrap(), whole);
}

#[test]
fn what_a_crash_leaves_behind_is_never_read_and_goes() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kernels");
    process(&kept, &["one"]);
    let file = kernels(&kept).remove(0);
    let left = |number: u32, age: Duration| {
        let path = file.with_extension(format!("77-{number}.tmp"));
        fs::write(&path, "half").unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(SystemTime::now() - age).unwrap();
        path
    };
    let (old, new) = (left(1, Duration::from_secs(7200)), left(2, Duration::ZERO));
    let note = kept.join("README");
    fs::write(&note, "somebody's").unwrap();
    assert_eq!(process(&kept, &["one"]).0, did(1, 0, 0, 0));
    assert_eq!((old.exists(), new.exists(), note.exists()), (false, true, true));
}

#[test]
fn files_used_longest_ago_make_room() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kernels");
    process(&kept, &["one"]);
    let bytes = fs::metadata(&kernels(&kept)[0]).unwrap().len();
    let age = |file: &Path, hours: u64| {
        let then = SystemTime::now() - Duration::from_secs(3600 * hours);
        fs::File::options().write(true).open(file).unwrap().set_modified(then).unwrap();
    };
    age(&kernels(&kept)[0], 9);
    let first = kernels(&kept).remove(0);
    let most = ByteSize(bytes * 4 + 8);
    assert_eq!(process_with(SimOptions::default(), &kept, most, &["two", "six", "ten"]).0.written, 3);
    assert_eq!(kernels(&kept).len(), 4);
    // Used again, it is the newest; the next file requires space.
    assert_eq!(process_with(SimOptions::default(), &kept, most, &["one"]).0.read, 1);
    kernels(&kept).iter().filter(|file| **file != first).for_each(|file| age(file, 2));
    assert_eq!(process_with(SimOptions::default(), &kept, most, &["new"]).0.written, 1);
    let left: u64 = kernels(&kept).iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(left <= most.as_u64() && first.exists() && kernels(&kept).len() == 3, "{:?}", kernels(&kept));
    // Code larger than the bound is not kept.
    assert_eq!(process_with(SimOptions::default(), &kept, ByteSize(10), &["one"]), (did(0, 1, 0, 0), 1));
}

#[test]
fn a_folder_that_others_may_write_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    let refused = |path: &Path| KernelCache::open(path, ByteSize::mib(1)).unwrap_err().to_string();
    assert!(refused(&open).contains("is open to others (mode 755); chmod 700 closes it"), "{}", refused(&open));
    let link = folder.path().join("link");
    symlink(&open, &link).unwrap();
    assert!(refused(&link).contains("is not a folder"), "{}", refused(&link));
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    KernelCache::open(&file, ByteSize::mib(1)).unwrap_err();
}

#[test]
fn processes_share_a_folder_at_the_same_time() {
    let names: Vec<String> = (0..20).map(|number| format!("kernel_{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    // Also caches of one process, which share its process ID.
    for round in 0..8 {
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("kernels");
        std::thread::scope(|scope| {
            for begin in 0..8 {
                let (kept, names) = (&kept, &names);
                scope.spawn(move || {
                    let mine: Vec<&str> = (0..20).map(|at| names[(at + begin * round) % 20]).collect();
                    let (did, assembled) = process(kept, &mine);
                    assert_eq!((did.read + did.assembled, did.assembled, did.refused), (20, assembled, 0));
                    assert_eq!(did.written, assembled, "whoever assembles one writes it");
                });
            }
        });
        assert_eq!(process(&kept, &names), (did(20, 0, 0, 0), 0));
        assert_eq!(kernels(&kept).len(), 20, "nothing is left under a temporary name");
    }
}

#[test]
fn text_that_is_wrong_is_told_as_without_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let driver = SimDriver::new(SimOptions::default());
    let device = Device::open(driver, 0).unwrap();
    let wrong = |device: &Device| device.load_module("this is no PTX").unwrap_err().to_string();
    let plain = wrong(&device);
    let cache = Arc::new(KernelCache::open(&folder.path().join("kernels"), ByteSize::mib(1)).unwrap());
    device.keep_kernels(&cache).unwrap();
    assert_eq!(wrong(&device), plain);
    assert_eq!(cache.statistics(), did(0, 1, 0, 0));
    let other = Arc::new(KernelCache::open(&folder.path().join("other"), ByteSize::mib(1)).unwrap());
    assert!(device.keep_kernels(&other).is_err() && device.keep_kernels(&cache).is_ok());
}
