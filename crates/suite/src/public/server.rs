//! The servers that a public suite talks to: a program that listens, or pages from this process.
//!
//! Input: a command and a port. Output: a running server. It ends when its value is dropped.

use anyhow::{Context, Result, bail};
use host::interrupt;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// A server, ended when it is dropped.
pub(crate) enum Running {
    Program { _program: interrupt::Program },
    Pages { _pages: Pages },
}

/// A port of the loopback interface on which nobody listens.
///
/// # Errors
/// There is no loopback interface, or no port is free.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .context("no port of the loopback interface is free")?;
    Ok(listener.local_addr().context("a socket has no address")?.port())
}

/// Starts a program and waits until it takes connections at the port.
///
/// # Errors
/// It cannot be started, or does not listen within 5 s.
pub(crate) fn start(command: &mut Command, port: u16) -> Result<Running> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let name = command.get_program().to_string_lossy().into_owned();
    let mut program =
        interrupt::spawn(command).with_context(|| format!("{name} cannot be started"))?;
    let begun = Instant::now();
    loop {
        interrupt::check()?;
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(Running::Program { _program: program });
        }
        if let Some(status) = program.wait_at_most(PAUSE)? {
            bail!("{name} has ended: {status}");
        }
        if begun.elapsed() > PATIENCE {
            bail!("{name} does not listen at port {port} of the loopback interface");
        }
    }
}

/// Serves a page of 1,000 bytes to every request.
pub(crate) struct Pages {
    port: u16,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pages {
    /// Begins to serve.
    ///
    /// # Errors
    /// There is no loopback interface, or no port is free.
    pub(crate) fn start() -> Result<Pages> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .context("no port of the loopback interface is free")?;
        let port = listener.local_addr().context("a socket has no address")?.port();
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let accept = move || {
            for connection in listener.incoming() {
                if seen.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(connection) = connection {
                    // A connection's thread ends with the connection.
                    let _ = std::thread::Builder::new().spawn(move || answer(connection));
                }
            }
        };
        let thread = std::thread::Builder::new().spawn(accept).context("a thread")?;
        Ok(Pages { port, ended, thread: Some(thread) })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // Wakes the thread, so that it sees the flag.
        if TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// Answers requests without a body until the other side closes, or sends something that is not a
/// request.
fn answer(mut connection: TcpStream) {
    let mut page = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n".to_vec();
    page.resize(page.len() + 1000, b'x');
    let _ = connection.set_nodelay(true);
    let (mut seen, mut buffer) = (Vec::<u8>::new(), [0; 4096]);
    loop {
        match connection.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => seen.extend(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        }
        loop {
            match head(&seen) {
                Ok(httparse::Status::Complete(bytes)) => drop(seen.drain(..bytes)),
                Ok(httparse::Status::Partial) => break,
                Err(_) => return,
            }
            if connection.write_all(&page).is_err() {
                return;
            }
        }
    }
}

/// The bytes of the first request's head.
fn head(seen: &[u8]) -> httparse::Result<usize> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    httparse::Request::new(&mut headers).parse(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_served_until_the_server_is_dropped() {
        let pages = Pages::start().unwrap();
        let port = pages.port();
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        // Two requests at once, the second in two pieces.
        connection.write_all(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n").unwrap();
        connection.write_all(b"\r\n").unwrap();
        let mut answer = vec![0; 2 * 1041];
        connection.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..1041], answer[1041..]);
        assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nxxx"));
        connection.write_all(b"no request\r\n\r\n").unwrap();
        assert_eq!(connection.read(&mut answer).unwrap(), 0);
        drop(pages);
        // A process that another test starts also has the socket until it becomes its program.
        let begun = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            assert!(begun.elapsed() < PATIENCE, "somebody still listens");
            std::thread::sleep(PAUSE);
        }
    }

    #[test]
    fn a_server_that_ends_or_is_missing_is_named() {
        let port = free_port().unwrap();
        let message = |command: &mut Command| start(command, port).err().unwrap().to_string();
        assert_eq!(message(&mut Command::new("/no/such")), "/no/such cannot be started");
        let ended = message(Command::new("sh").args(["-c", "exit 3"]));
        assert!(ended.starts_with("sh has ended: exit status: 3"), "{ended}");
    }
}
