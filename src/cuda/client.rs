//! The client object in a module: where it is, which interface it has, and filling it in.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::CudaStream;

use crate::backend::SharedAllocator;
use crate::backend::cuda::{CudaError, Global, Globals};
use crate::device::CLIENT_SYMBOLS;
use crate::protocol::abi::UnknownSymbol;
use crate::protocol::{Abi, SymbolKind};
use crate::server::Server;

/// Why a client was not published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The module has no client object.
    #[error(
        "the module has no client object: none of {} is in it; it makes no host calls, or its \
         symbols are not visible (compile with -rdc=true)",
        CLIENT_SYMBOLS.join(", ")
    )]
    NoClient,
    /// The module has several client objects, and each needs a server of its own.
    #[error(
        "the module has several client objects ({0} and {1}): publish each to a server of its own, \
         by DeviceClient::find_named"
    )]
    Several(&'static str, &'static str),
    /// The object has a size that no known interface has.
    #[error("{symbol}: {source}")]
    UnknownSize {
        /// The object's name.
        symbol: String,
        /// What is known.
        source: UnknownSymbol,
    },
    /// The server speaks another interface than the device code.
    #[error(
        "{symbol} has {size} bytes and the server speaks {server}, whose object has {} bytes: \
         {}",
        .server.client_size(),
        build(*.size)
    )]
    OtherAbi {
        /// The object's name.
        symbol: String,
        /// The object's size.
        size: u64,
        /// The server's interface.
        server: Abi,
    },
    /// The pointer leads nowhere.
    #[error("{symbol} does not point to device memory with room for a client object")]
    BadPointer {
        /// The pointer's name.
        symbol: String,
    },
    /// The driver could not do it.
    #[error(transparent)]
    Driver(#[from] CudaError),
}

/// Which server to build for an object of this size.
fn build(size: u64) -> String {
    match Abi::from_symbol_size(size) {
        Ok(abi) => format!("build it with .abi(Abi::{abi:?})"),
        Err(UnknownSymbol::Pointer) => {
            "build it with .abi(Abi::Llvm17), Llvm18 or Llvm19, as the device code was".to_owned()
        }
        Err(error) => error.to_string(),
    }
}

/// The client object of a module.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use hostcall::{Server, cuda::{CudaAllocator, DeviceClient, cudarc::driver::*}};
/// # fn f(module: Arc<CudaModule>, stream: Arc<CudaStream>) -> Result<(), Box<dyn std::error::Error>> {
/// let client = DeviceClient::find(&module, &stream)?;
/// let allocator = CudaAllocator::new(stream.context().clone());
/// let server = Server::builder(allocator).abi(client.abi()?).build()?;
/// client.publish(&server)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct DeviceClient<'m> {
    symbol: String,
    global: Global<'m>,
}

impl<'m> DeviceClient<'m> {
    /// Finds it under one of the known [names](crate::device::CLIENT_SYMBOLS).
    ///
    /// # Errors
    /// [`PublishError::NoClient`], [`PublishError::Several`], or what the driver says.
    pub fn find(module: &'m impl Globals, stream: &Arc<CudaStream>) -> Result<Self, PublishError> {
        Self::find_among(&CLIENT_SYMBOLS, module, stream)?.ok_or(PublishError::NoClient)
    }

    fn find_among(
        symbols: &[&'static str],
        module: &'m impl Globals,
        stream: &Arc<CudaStream>,
    ) -> Result<Option<Self>, PublishError> {
        let mut found: Option<(&'static str, Self)> = None;
        for &symbol in symbols {
            match (Self::look(module, stream, symbol)?, &found) {
                (None, _) => {}
                (Some(client), None) => found = Some((symbol, client)),
                (Some(_), Some((first, _))) => return Err(PublishError::Several(first, symbol)),
            }
        }
        Ok(found.map(|(_, client)| client))
    }

    /// Finds it under a name of the program's own.
    ///
    /// # Errors
    /// [`PublishError::NoClient`], or what the driver says.
    pub fn find_named(
        module: &'m impl Globals,
        stream: &Arc<CudaStream>,
        symbol: &str,
    ) -> Result<Self, PublishError> {
        Self::look(module, stream, symbol)?.ok_or(PublishError::NoClient)
    }

    fn look(
        module: &'m impl Globals,
        stream: &Arc<CudaStream>,
        symbol: &str,
    ) -> Result<Option<Self>, CudaError> {
        let global = module.global(stream, symbol)?;
        Ok(global.map(|global| DeviceClient { symbol: symbol.to_owned(), global }))
    }

    /// The object's name.
    pub fn symbol(&self) -> &str {
        &self.symbol
    }

    /// The interface that the object's size tells.
    ///
    /// # Errors
    /// [`PublishError::UnknownSize`]; also for the pointer of LLVM 17 to 19, which does not tell.
    pub fn abi(&self) -> Result<Abi, PublishError> {
        Abi::from_symbol_size(self.global.size())
            .map_err(|source| PublishError::UnknownSize { symbol: self.symbol.clone(), source })
    }

    /// Copies the server's image into the object, and waits for the copy. Kernels launched from
    /// then on find the server.
    ///
    /// No kernel that uses the object may run. The server must outlive those that do.
    ///
    /// # Errors
    /// [`PublishError::UnknownSize`], [`PublishError::OtherAbi`], [`PublishError::BadPointer`], or
    /// what the driver says. Nothing has been copied then.
    pub fn publish<A: SharedAllocator + 'static>(
        &self,
        server: &Server<A>,
    ) -> Result<(), PublishError> {
        let image = server.client_image();
        fits(&self.symbol, self.global.size(), image.abi())?;
        let bytes = image.as_bytes();
        if image.abi().symbol_kind() == SymbolKind::Object {
            return Ok(self.global.write(bytes)?);
        }
        match self.global.target(bytes.len() as u64)? {
            Some(object) => Ok(object.write(bytes)?),
            None => Err(PublishError::BadPointer { symbol: self.symbol.clone() }),
        }
    }
}

/// Whether an object of this size is one of a server that speaks `server`.
fn fits(symbol: &str, size: u64, server: Abi) -> Result<(), PublishError> {
    let symbol = symbol.to_owned();
    match (Abi::from_symbol_size(size), server.symbol_kind()) {
        (Err(UnknownSymbol::Pointer), SymbolKind::Pointer) => Ok(()),
        // Objects of the same size are the same.
        (Ok(_), SymbolKind::Object) if size == server.client_size() as u64 => Ok(()),
        (Err(source @ UnknownSymbol::Size(_)), _) => {
            Err(PublishError::UnknownSize { symbol, source })
        }
        _ => Err(PublishError::OtherAbi { symbol, size, server }),
    }
}

impl fmt::Debug for DeviceClient<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceClient")
            .field("symbol", &self.symbol)
            .field("global", &self.global)
            .finish()
    }
}

/// Finds the module's client object and copies the server's image into it: [`DeviceClient::find`],
/// then [`publish`](DeviceClient::publish).
///
/// A module may have a client for each wire; the one that the server speaks is taken. `stream` is one of
/// the module's context.
///
/// # Errors
/// As those two.
pub fn publish<A: SharedAllocator + 'static>(
    module: &impl Globals,
    stream: &Arc<CudaStream>,
    server: &Server<A>,
) -> Result<(), PublishError> {
    let (llvm, own) = CLIENT_SYMBOLS.split_at(3);
    let symbols = if server.layout().abi() == Abi::Hostcall { own } else { llvm };
    let client = match DeviceClient::find_among(symbols, module, stream)? {
        Some(client) => client,
        // There may be one that says which server it needs.
        None => DeviceClient::find(module, stream)?,
    };
    client.publish(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_fits_the_server_that_speaks_its_interface() {
        for server in Abi::ALL {
            let fitting: Vec<_> = [8u64, 96, 544, 552, 560, 2096, 16448]
                .into_iter()
                .filter(|&size| fits("client", size, server).is_ok())
                .collect();
            let expected = match server.symbol_kind() {
                SymbolKind::Pointer => 8,
                SymbolKind::Object => server.client_size() as u64,
            };
            assert_eq!(fitting, [expected], "{server}");
        }
    }

    #[test]
    fn what_does_not_fit_says_what_to_build() {
        let message = |size, server| fits("client", size, server).unwrap_err().to_string();
        assert_eq!(
            message(552, Abi::LlvmMain),
            "client has 552 bytes and the server speaks LLVM main, whose object has 2096 bytes: \
             build it with .abi(Abi::Llvm20)"
        );
        assert!(message(8, Abi::Llvm20).contains("Abi::Llvm17), Llvm18 or Llvm19"));
        assert!(message(2096, Abi::Llvm19).ends_with(".abi(Abi::LlvmMain)"));
        assert!(message(100, Abi::Llvm20).contains("100 bytes: known are 552"));
    }
}
