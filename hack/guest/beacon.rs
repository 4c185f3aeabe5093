//! The program that a test watches in a guest: it emits numbered signs of life at a steady pace.
//!
//! A number that is missing, occurs twice or starts again shows that the guest was restarted or ran in two places; a
//! late one shows how long it stood still. It is a program of its own, since a shell that forks for each tick is too
//! slow and too uneven in an emulated guest.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::process::exit;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Reads `1s`, `200ms`, `2m` or a plain number of seconds.
fn interval(text: &str) -> Option<Duration> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let number: f64 = text[..split].parse().ok()?;
    let unit = match &text[split..] {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * unit).ok().filter(|d| !d.is_zero())
}

fn uptime() -> f64 {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    text.split(' ').next().and_then(|argument| argument.parse().ok()).unwrap_or(0.0)
}

/// The first part of the kernel's identity of this boot: another one is another run of the guest.
fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.split('-').next().unwrap_or_default().to_owned()
}

/// Calls `send` with a numbered line at each interval, for ever. A standstill
/// makes one line late, which it reports; missed times are not caught up in a burst.
fn pace(every: Duration, mut send: impl FnMut(&str)) -> ! {
    let begin = Instant::now();
    let (boot, booted) = (boot(), uptime());
    let mut due = begin;
    for number in 1u64.. {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let up = booted + begin.elapsed().as_secs_f64();
        let late = due.elapsed();
        send(&format!(
            "tick {number} boot={boot} wall={}.{:03} up={up:.3} late={}ms\n",
            wall.as_secs(),
            wall.subsec_millis(),
            late.as_millis()
        ));
        due += every;
        if due.elapsed() > every {
            due = Instant::now();
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    exit(0)
}

fn count(every: Duration) -> io::Result<()> {
    let mut console = io::stdout();
    pace(every, |line| {
        let _ = console.write_all(line.as_bytes());
        let _ = console.flush();
    })
}

/// A lost datagram is the receiver's to notice, an unreachable one is tried again.
fn udp(target: &str, every: Duration) -> io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    pace(every, |line| {
        let _ = socket.send_to(line.as_bytes(), target);
    })
}

/// Each line is on the disk before the next is written.
fn write(path: &str, every: Duration) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    pace(every, |line| {
        if let Err(error) = file.write_all(line.as_bytes()).and_then(|()| file.sync_all()) {
            println!("beacon: write {path}: {error}");
        }
    })
}

/// Changes a byte of each page of this number of MiB at each interval. No page is empty or like another, so that
/// none is sent for less than its size. Prints the size at first and every 10 s.
fn dirty(mebibytes: usize, every: Duration) -> io::Result<()> {
    const PAGE: usize = 4096;
    const REPORTED_EVERY: Duration = Duration::from_secs(10);
    let mut number = 1u64;
    let mut random = || {
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        number
    };
    let mut memory: Vec<u64> = (0..mebibytes << 17).map(|_| random()).collect();
    let mut due = Instant::now();
    let mut report_due = due;
    loop {
        if report_due <= Instant::now() {
            println!("dirty {mebibytes} MiB");
            report_due = Instant::now() + REPORTED_EVERY;
        }
        for page in memory.chunks_mut(PAGE / 8) {
            page[0] = page[0].wrapping_add(1);
        }
        due = (due + every).max(Instant::now());
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Sends back what it is sent, on each connection.
fn listen(port: u16) -> io::Result<()> {
    for stream in TcpListener::bind(("0.0.0.0", port))?.incoming() {
        let mut stream = stream?;
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                if stream.write_all(&buffer[..length]).is_err() {
                    break;
                }
            }
        });
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let pace = arguments.last().and_then(|argument| interval(argument));
    let done = match (arguments.as_slice(), pace) {
        (["count", _], Some(every)) => count(every),
        (["udp", target, _], Some(every)) => udp(target, every),
        (["write", path, _], Some(every)) => write(path, every),
        (["dirty", size, _], Some(every)) if size.parse::<usize>().is_ok() => dirty(size.parse().unwrap_or(0), every),
        (["listen", port], _) if port.parse::<u16>().is_ok() => listen(port.parse().unwrap_or(0)),
        _ => {
            eprintln!("beacon: count INTERVAL | udp HOST:PORT INTERVAL | write FILE INTERVAL | dirty MIB INTERVAL | listen PORT");
            exit(2);
        }
    };
    if let Err(error) = done {
        eprintln!("beacon {}: {error}", arguments.join(" "));
        exit(1);
    }
}
