//! `selftest`: a line per check, a total, and its exit codes.

use crate::millpond;

#[test]
fn every_check_passes_on_the_simulated_device() {
    let ended = millpond(&["selftest", "--device", "sim", "--queries", "60", "--seed", "0x5eed"]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    let (checks, total) = ended.stdout.trim_end().rsplit_once('\n').expect("lines");
    for family in ["memory/", "order/", "pools/", "reuse/", "kernels/", "pipelines/", "sql/"] {
        assert!(checks.lines().any(|line| line.starts_with("ok ") && line.contains(family)), "{family}:\n{checks}");
    }
    let random = checks.lines().last().unwrap_or_default();
    assert!(random.contains("sql/random") && random.contains("60 random queries"), "{random}");
    assert!(random.ends_with("(--seed 0x5eed)"), "{random}");
    let beginning = |word: &str| checks.lines().filter(|line| line.starts_with(word)).count();
    let (passed, skipped) = (beginning("ok "), beginning("skip "));
    assert!(passed > 60, "{checks}");
    let count = passed + skipped;
    assert_eq!(total, format!("{count} checks on simulated device: {passed} passed, 0 failed, {skipped} skipped"));
}

#[test]
fn a_device_that_fails_is_told_by_the_exit_code() {
    let ended =
        millpond(&["selftest", "--device", "sim", "--set", "millpond.debug_sim_lose_at_launch=5", "--queries", "5"]);
    assert_eq!(ended.code, 1, "{}{}", ended.stdout, ended.stderr);
    // Queries that the CPU answers after the device is lost prove nothing.
    let random = ended.stdout.lines().find(|line| line.contains("sql/random")).unwrap_or_default();
    assert!(random.starts_with("FAILED") && random.contains("was lost"), "{random}");
    assert!(ended.stdout.contains("FAILED kernels/reduce"), "{}", ended.stdout);
    assert!(ended.stdout.contains("lost"), "{}", ended.stdout);
}

#[test]
fn no_device_to_test() {
    let ended = millpond(&["selftest", "--device", "cpu"]);
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    assert!(ended.stderr.contains("no device to test") && ended.stderr.contains("--device sim"), "{}", ended.stderr);
    assert_eq!(millpond(&["selftest", "--device", "cuda:99"]).code, 3);
}

#[test]
fn a_seed_is_a_number() {
    let ended = millpond(&["selftest", "--device", "sim", "--seed", "seven"]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("0x5eed"), "{}", ended.stderr);
}

#[test]
fn checks_are_chosen_by_name() {
    let ended = millpond(&["selftest", "--device", "sim", "--only", "kernels/parquet_d"]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.starts_with("ok     kernels/parquet_damage"), "{}", ended.stdout);
    assert!(
        ended.stdout.ends_with("1 checks on simulated device: 1 passed, 0 failed, 0 skipped\n"),
        "{}",
        ended.stdout
    );
    let ended = millpond(&["selftest", "--device", "sim", "--only", "kernels/none"]);
    assert_eq!(ended.code, 2, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("no check begins with 'kernels/none'"), "{}", ended.stderr);
}
