//! A device program that is allowed one directory, and what it sees when it tries more. You see the
//! results of its calls as C would give them, and then what the host counted.

use std::error::Error;

use hostcall::libc::files::{Access, FilePolicy};
use hostcall::libc::{Services, opcode};
use hostcall::{ClientError, LaneMask, Registry, Simulation, Warp};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::temp_dir().join(format!("sandboxed-files-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    std::os::unix::fs::symlink("/etc", directory.join("link"))?;

    let registry = Registry::new();
    let policy = FilePolicy::directory(&directory, Access::ReadWrite)?;
    let services = Services::builder().files(policy).build();
    services.register(&registry)?;

    let report = Simulation::new(&registry).lanes(1).run(async |warp| {
        let mut said = Vec::new();
        let file = open(&warp, "notes.txt", "w").await?;
        let written = write(&warp, file, "written by a device\n").await?;
        let closed = close(&warp, file).await?;
        said.push(format!("fopen(\"notes.txt\", \"w\") gives a handle: {}", file != 0));
        said.push(format!("fwrite gives {written}, fclose gives {closed}"));
        for path in ["/etc/passwd", "../outside", "link/passwd"] {
            said.push(format!("fopen({path:?}, \"r\") gives {}", open(&warp, path, "r").await?));
        }
        said.push(format!("fclose of a forged handle gives {}", close(&warp, 0xbad0).await?));
        Ok(said)
    })?;

    report.outputs()?.iter().flatten().for_each(|line| println!("device: {line}"));
    let notes = std::fs::read_to_string(directory.join("notes.txt"))?;
    println!("host:   notes.txt says {notes:?}");
    println!("host:   {} paths led outside", services.denials().files.outside);
    println!("host:   {} handles were forged", services.files().stats().bad_handles);
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}

// The device's half of the C library: what its fopen, fwrite and fclose say to the host.

async fn open(warp: &Warp<'_>, path: &str, mode: &str) -> Result<u64, ClientError> {
    let (path, mode) = (format!("{path}\0"), format!("{mode}\0"));
    let port = warp.open(opcode::OPEN_FILE).await?;
    let mut port = port.send_stream_async(|_| path.as_bytes()).await?;
    port.send_async(|lane| lane.set_bytes(mode.as_bytes())).await?;
    let mut file = 0;
    port.recv_async(|lane| file = lane.word(0)).await?;
    Ok(file)
}

async fn write(warp: &Warp<'_>, file: u64, text: &str) -> Result<u64, ClientError> {
    let mut port = warp.open(opcode::WRITE_TO_STREAM).await?.send(|lane| lane.set_word(0, file));
    port.send_stream_async(|_| text.as_bytes()).await?;
    let mut written = 0;
    port.recv_async(|lane| written = lane.word(0)).await?;
    Ok(written)
}

async fn close(warp: &Warp<'_>, file: u64) -> Result<i32, ClientError> {
    let warp = warp.diverge(LaneMask::lane(0));
    let mut result = 0;
    warp.call(opcode::CLOSE_FILE, |_| file, |_, status: u64| result = status as i32).await?;
    Ok(result)
}
