//! How `parquet rewrite`, `gen` and `mem bench --json` treat existing targets: the rules of `-o`.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Ended, millpond};

const SALES: &str = "data/samples/sales.parquet";

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("folder"))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A copy of the sample with mode `mode`.
    fn copy(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.at(name);
        fs::copy(crate::root().join(SALES), &path).expect("copied");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("mode");
        path
    }

    fn temporary(&self) -> usize {
        let entries = fs::read_dir(self.0.path()).expect("a folder");
        entries.filter(|entry| entry.as_ref().expect("entry").file_name().to_string_lossy().starts_with('.')).count()
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("a file").permissions().mode() & 0o7777
}

fn rewritten(from: &Path, to: &Path, more: &[&str]) -> Ended {
    let (from, to) = (from.to_str().expect("UTF-8"), to.to_str().expect("UTF-8"));
    millpond(&[&["parquet", "rewrite", from, to], more].concat())
}

fn generated(folder: &Path, suite: &str, table: &str) -> Ended {
    let scale = if suite == "tpch" { "0.001" } else { "0.01" };
    let out = folder.to_str().expect("UTF-8");
    millpond(&["gen", suite, "--scale", scale, "--out", out, "--tables", table])
}

fn is_parquet(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1")
}

/// The bytes read from a pipe, and the result of the command that wrote it.
fn through_pipe(pipe: &Path, run: impl FnOnce() -> Ended) -> (Vec<u8>, Ended) {
    assert!(Command::new("mkfifo").arg(pipe).status().expect("mkfifo runs").success());
    let path = pipe.to_path_buf();
    let reader = std::thread::spawn(move || fs::read(path).expect("read"));
    let ended = run();
    (reader.join().expect("a reader"), ended)
}

#[test]
fn rewritten_files_keep_their_rights_and_links_stay_links() {
    let folder = Folder::new();
    let sales = crate::root().join(SALES);
    let (private, shared) = (folder.copy("private.parquet", 0o600), folder.copy("shared.parquet", 0o664));
    symlink("shared.parquet", folder.at("link.parquet")).expect("link");
    symlink("new.parquet", folder.at("dangling.parquet")).expect("link");
    let before = fs::read(&shared).expect("read");

    assert_eq!(rewritten(&private, &private, &["--force"]).code, 0);
    assert_eq!(mode(&private), 0o600);
    let ended = rewritten(&sales, &folder.at("link.parquet"), &[]);
    assert!(ended.code == 4 && ended.stderr.contains("--force replaces it"), "{}", ended.stderr);
    assert_eq!(fs::read(&shared).expect("read"), before);
    // With the original codec the file would be identical.
    assert_eq!(rewritten(&sales, &folder.at("link.parquet"), &["--force", "--codec", "none"]).code, 0);
    assert!(folder.at("link.parquet").is_symlink());
    assert_eq!(mode(&shared), 0o664);
    assert_ne!(fs::read(&shared).expect("read"), before);
    // A dangling link has no file to replace.
    assert_eq!(rewritten(&sales, &folder.at("dangling.parquet"), &[]).code, 0);
    assert!(folder.at("dangling.parquet").is_symlink() && folder.at("new.parquet").is_file());
    assert_eq!(folder.temporary(), 0);
}

#[test]
fn devices_pipes_and_standard_output_are_written_to() {
    let folder = Folder::new();
    let sales = crate::root().join(SALES);
    let ended = rewritten(&sales, Path::new("/dev/full"), &["--force"]);
    assert!(ended.code == 4 && ended.stderr.contains("no space left on device"), "{}", ended.stderr);
    assert!(fs::metadata("/dev/full").expect("a device").file_type().is_char_device());
    assert_eq!(rewritten(&sales, Path::new("/dev/null"), &[]).code, 0);
    assert!(fs::metadata("/dev/null").expect("a device").file_type().is_char_device());

    let pipe = folder.at("pipe");
    let (bytes, ended) = through_pipe(&pipe, || rewritten(&sales, &pipe, &[]));
    assert!(ended.code == 0 && is_parquet(&bytes), "{} {}", bytes.len(), ended.stderr);
    assert!(fs::metadata(&pipe).expect("a pipe").file_type().is_fifo());
    assert!(ended.stdout.contains(": 60000 rows, 1 row group, "), "{}", ended.stdout);

    let out = folder.at("out.parquet");
    let ended = crate::command(&["parquet", "rewrite", SALES, "/dev/stdout"])
        .stdout(File::create(&out).expect("a file"))
        .output()
        .expect("millpond runs");
    assert!(is_parquet(&fs::read(&out).expect("read")));
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(told.starts_with("/dev/stdout: 60000 rows, 1 row group, "), "{told}");
}

#[test]
fn what_cannot_be_written_is_refused_before_the_work() {
    let folder = Folder::new();
    // Undecodable rows, which the rewrite would detect.
    let broken = folder.at("broken.parquet");
    let mut bytes = fs::read(crate::root().join(SALES)).expect("read");
    bytes[4..100_000].fill(0xff);
    fs::write(&broken, bytes).expect("written");
    let file = folder.copy("file.parquet", 0o644);
    let locked = folder.copy("locked.parquet", 0o400);
    fs::create_dir(folder.at("folder.parquet")).expect("folder");
    // Root may write a read-only file.
    let is_root = File::options().write(true).open(&locked).is_ok();
    for (to, reason) in [
        (file.join("x.parquet"), "is a file"),
        (folder.at("folder.parquet/broken.parquet/"), "is a folder"),
        (locked.clone(), "permission denied"),
        (PathBuf::from("/proc/nothing/x.parquet"), "cannot make folder"),
    ] {
        if to == locked && is_root {
            continue;
        }
        if reason == "is a folder" {
            fs::create_dir(folder.at("folder.parquet/broken.parquet")).expect("folder");
            fs::create_dir(folder.at("folder.parquet/broken.parquet/broken.parquet")).expect("folder");
        }
        let ended = rewritten(&broken, &to, &["--force"]);
        assert!(ended.code == 4 && ended.stderr.contains(reason), "{}: {}", to.display(), ended.stderr);
        assert!(!ended.stderr.contains("column"), "{}", ended.stderr);
    }
    assert_eq!(mode(&locked), 0o400);

    // Two inputs with one output file.
    let (from, to) = (folder.at("from"), folder.at("to"));
    fs::create_dir_all(&from).and_then(|()| fs::create_dir(&to)).expect("folders");
    for name in ["from/a.parquet", "from/b.parquet"] {
        folder.copy(name, 0o644);
    }
    symlink("b.parquet", to.join("a.parquet")).expect("link");
    let ended = rewritten(&from, &to, &["--force"]);
    assert!(ended.code == 4 && ended.stderr.contains("another output is"), "{}", ended.stderr);
    assert!(!to.join("b.parquet").exists());
}

#[test]
fn a_folder_that_is_missing_is_made() {
    let folder = Folder::new();
    let sales = crate::root().join(SALES);
    let to = PathBuf::from(format!("{}/", folder.at("fast").display()));
    let ended = rewritten(&sales, &to, &[]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(folder.at("fast/sales.parquet").is_file());
}

#[test]
fn generated_tables_keep_rights_and_links_and_are_written_to_pipes() {
    let folder = Folder::new();
    for (suite, name, table) in [("tpch", "nation.parquet", "nation"), ("gpu-bdb", "store/part-00000.parquet", "store")]
    {
        let data = folder.at(suite);
        assert_eq!(generated(&data, suite, table).code, 0);
        let path = data.join(name);
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("mode");
        assert_eq!(generated(&data, suite, table).code, 0);
        assert_eq!(mode(&path), 0o600);

        let real = folder.at("real.parquet");
        fs::rename(&path, &real).expect("renamed");
        let whole = fs::read(&real).expect("read");
        fs::write(&real, "old").expect("written");
        symlink(&real, &path).expect("link");
        assert_eq!(generated(&data, suite, table).code, 0);
        assert!(path.is_symlink() && mode(&real) == 0o600);
        assert_eq!(fs::read(&real).expect("read"), whole);

        fs::remove_file(&path).expect("removed");
        let (bytes, ended) = through_pipe(&path, || generated(&data, suite, table));
        assert_eq!(bytes, whole, "{}", ended.stderr);
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("folder");
        let ended = generated(&data, suite, table);
        assert!(ended.code == 4 && ended.stderr.contains("it is a folder"), "{}", ended.stderr);
    }
    assert_eq!(folder.temporary(), 0);
}

#[test]
fn a_report_of_mem_bench_that_fails_leaves_the_old_one() {
    let folder = Folder::new();
    let report = folder.at("report.json");
    fs::write(&report, "old").expect("written");
    fs::set_permissions(&report, Permissions::from_mode(0o600)).expect("mode");
    let path = report.to_str().expect("UTF-8");
    let ended = millpond(&["mem", "bench", "--device", "cuda:99", "--json", path]);
    assert_eq!((ended.code, fs::read_to_string(&report).expect("read").as_str()), (3, "old"), "{}", ended.stderr);
    assert_eq!((mode(&report), folder.temporary()), (0o600, 0));
    let gone = folder.at("gone/report.json");
    let ended = millpond(&["mem", "bench", "--device", "sim", "--json", gone.to_str().expect("UTF-8")]);
    assert_eq!(ended.code, 4, "{}", ended.stderr);
}
