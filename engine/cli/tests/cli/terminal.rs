//! A terminal for tests: the program on a pseudo-terminal, and the screen as a user would see it.
//!
//! ```text
//!   test ─ keys ─► master ═ pseudo-terminal ═ program
//!        ◄─ screen ── vt100 ◄─┘
//! ```
//!
//! Waits   For the screen's content, however long that takes; the limit only ends a hanging test.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

pub const PROMPT: &str = "millpond>";
pub const CTRL_C: &str = "\x03";
pub const CTRL_D: &str = "\x04";
pub const UP: &str = "\x1b[A";
pub const TAB: &str = "\t";

const HANGS: Duration = Duration::from_secs(120);

/// A program on a terminal.
pub struct Terminal {
    master: File,
    pub child: Child,
    chunks: Receiver<Vec<u8>>,
    parser: vt100::Parser,
    /// All output of the program.
    pub raw: Vec<u8>,
}

impl Terminal {
    /// Starts a command on a terminal of this size.
    pub fn start(command: Command, (rows, columns): (u16, u16)) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&master).expect("granted");
        unlockpt(&master).expect("unlocked");
        tcsetwinsize(&master, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).expect("a size");
        let name = ptsname(&master, Vec::new()).expect("its name");
        let end = || -> OwnedFd {
            rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("the other end")
        };
        let mut command = on_its_terminal(&command);
        command.stdin(Stdio::from(end())).stdout(Stdio::from(end())).stderr(Stdio::from(end()));
        command.env("TERM", "xterm-256color");
        let child = command.spawn().expect("setsid and the program start");
        // The command holds this process's copies of the other end; without them the master reaches its end when the
        // program ends.
        drop(command);
        let master = File::from(master);
        let (sender, chunks) = channel();
        let mut reader = master.try_clone().expect("a descriptor");
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = reader.read(&mut bytes) {
                if count == 0 || sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { master, child, chunks, parser: vt100::Parser::new(size(rows), size(columns), 2000), raw: vec![] }
    }

    /// Presses keys.
    pub fn keys(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("the terminal takes them");
    }

    /// Waits until the screen satisfies a condition.
    pub fn until(&mut self, what: &str, is_so: impl Fn(&vt100::Screen) -> bool) {
        let began = Instant::now();
        while !is_so(self.parser.screen()) {
            match self.chunks.recv_timeout(HANGS.saturating_sub(began.elapsed())) {
                Ok(chunk) => {
                    self.parser.process(&chunk);
                    self.raw.extend(chunk);
                }
                Err(_) => panic!("no {what} on the screen:\n{}", self.screen()),
            }
        }
    }

    /// Waits for a text on the screen.
    pub fn until_shows(&mut self, text: &str) {
        self.until(text, |screen| screen.contents().contains(text));
    }

    /// Waits for an empty prompt.
    pub fn until_prompt(&mut self) {
        self.until("prompt", |screen| row(screen, screen.cursor_position().0).trim_end() == PROMPT);
    }

    /// Types a line at the prompt, waits for its echo, presses Enter, and waits for the next prompt. Returns the lines
    /// between them.
    pub fn ask(&mut self, line: &str) -> String {
        let from = self.type_line(line);
        self.until("prompt", |screen| {
            let (at, _) = screen.cursor_position();
            // A full screen scrolls.
            at >= from.min(screen.size().0.get() - 1) && row(screen, at).trim_end() == PROMPT
        });
        let screen = self.parser.screen();
        let lines: Vec<String> = (from..screen.cursor_position().0).map(|at| row(screen, at)).collect();
        lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
    }

    /// Types a line, waits for its echo, and presses Enter. Returns the number of the row below.
    pub fn type_line(&mut self, line: &str) -> u16 {
        let before = self.parser.screen().cursor_position().0;
        self.keys(line);
        self.until(line, |screen| {
            let end: String = (before..=screen.cursor_position().0).map(|at| row(screen, at)).collect();
            end.trim_end().ends_with(line.trim_end())
        });
        let below = self.parser.screen().cursor_position().0 + 1;
        self.keys("\r");
        below
    }

    /// The text on the screen.
    pub fn screen(&self) -> String {
        self.parser.screen().contents()
    }

    /// True if the terminal echoes typed letters, as before a program turns that off.
    pub fn echoes(&self) -> bool {
        tcgetattr(&self.master).expect("settings").local_modes.contains(LocalModes::ECHO | LocalModes::ICANON)
    }

    /// Waits for the program's end. Returns its exit code.
    pub fn end(&mut self) -> Option<i32> {
        let status = self.child.wait().expect("an end");
        while let Ok(chunk) = self.chunks.recv_timeout(Duration::from_millis(200)) {
            self.parser.process(&chunk);
            self.raw.extend(chunk);
        }
        status.code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The same command with standard input as its controlling terminal, so that Ctrl-C reaches its processes.
fn on_its_terminal(command: &Command) -> Command {
    let mut wrapped = Command::new("setsid");
    wrapped.arg("--ctty").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        wrapped.current_dir(folder);
    }
    wrapped
}

fn size(cells: u16) -> NonZero<u16> {
    NonZero::new(cells).expect("a terminal has cells")
}

fn row(screen: &vt100::Screen, at: u16) -> String {
    let (_, columns) = screen.size();
    screen.contents_between(at, 0, at, columns.get())
}
