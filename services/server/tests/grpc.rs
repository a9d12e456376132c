//! gRPC health and reflection as a load balancer and a stock command-line client see them.
#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_flight::{Ticket, flight_service_client::FlightServiceClient};
use forebay::{Server, Settings};
use parquet::arrow::ArrowWriter;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

/// Time in which calls are accepted after the health checks fail.
const DRAIN_DELAY: Duration = Duration::from_secs(5);

async fn status(client: &mut HealthClient<Channel>, service: &str) -> ServingStatus {
    let request = HealthCheckRequest { service: service.to_owned() };
    client.check(request).await.unwrap().into_inner().status()
}

/// Waits until the services have `expected`.
async fn until(client: &mut HealthClient<Channel>, services: &[&str], expected: ServingStatus) {
    let reached = tokio::time::timeout(Duration::from_secs(30), async {
        for service in services {
            while status(client, service).await != expected {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    reached.await.unwrap_or_else(|_| panic!("expected {expected:?}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_reflection_answer_and_a_drain_is_seen_and_waits_for_running_streams() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("numbers.parquet");
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
    let batch = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
    let mut writer =
        ArrowWriter::try_new(std::fs::File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();

    let mut settings = Settings { cache_dir: folder.path().join("cache"), ..Settings::default() };
    settings.grpc = "127.0.0.1:0".parse().expect("an address");
    settings.http = "127.0.0.1:0".parse().expect("an address");
    settings.drain_delay = DRAIN_DELAY;
    let features = forebay_proto::v1::Lookup { dataset: "numbers".to_owned(), ..Default::default() };
    settings.add_online(&["numbers=n".to_owned()]).unwrap();
    settings.queues.insert("sums".to_owned(), forebay::QueueSpec { features, ..Default::default() });
    settings.add_datasets(&[format!("numbers={}", path.display())]).unwrap();
    let server = Server::start(settings).await.unwrap();
    let channel = Endpoint::from_shared(server.grpc().url()).unwrap().connect().await.unwrap();
    let mut health = HealthClient::new(channel.clone());
    let services = [
        "",
        "arrow.flight.protocol.FlightService",
        "forebay.v1.Online",
        "inference.GRPCInferenceService",
        "dataset/numbers",
    ];
    until(&mut health, &services, ServingStatus::Serving).await;
    assert_eq!(status(&mut health, "queue/sums").await, ServingStatus::NotServing, "it has no worker");

    let mut reflection = ServerReflectionClient::new(channel.clone());
    let asked = [
        MessageRequest::ListServices(String::new()),
        MessageRequest::FileContainingSymbol("arrow.flight.protocol.FlightService.DoGet".to_owned()),
        MessageRequest::FileContainingSymbol("forebay.v1.Command".to_owned()),
    ];
    let asked =
        asked.map(|request| ServerReflectionRequest { host: String::new(), message_request: Some(request) });
    let mut answers =
        reflection.server_reflection_info(tokio_stream::iter(asked)).await.unwrap().into_inner();
    let Some(MessageResponse::ListServicesResponse(listed)) =
        answers.message().await.unwrap().unwrap().message_response
    else {
        panic!("expected the services");
    };
    assert!(listed.service.iter().any(|service| service.name == "arrow.flight.protocol.FlightService"));
    for _ in 0..2 {
        let answer = answers.message().await.unwrap().unwrap().message_response;
        assert!(matches!(answer, Some(MessageResponse::FileDescriptorResponse(_))), "{answer:?}");
    }
    drop((answers, reflection));

    // More batches than may wait for a consumer, so that the stream runs until they are taken.
    let request = r#"{"train": {"dataset": "numbers", "batch_size": 1000, "epochs": 100000}}"#;
    let mut flight = FlightServiceClient::new(channel);
    let mut stream = flight.do_get(Ticket::new(request)).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    let began = Instant::now();
    let drained = tokio::spawn(server.drain());
    until(&mut health, &services, ServingStatus::NotServing).await;
    let accepted = flight.do_get(Ticket::new(request)).await;
    assert!(accepted.is_ok() || began.elapsed() >= DRAIN_DELAY, "calls are accepted during the delay");
    drop(accepted);
    let refused = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            match flight.do_get(Ticket::new(request)).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(refused) => break refused,
            }
        }
    });
    assert_eq!(refused.await.unwrap().code(), tonic::Code::Unavailable);
    assert!(!drained.is_finished(), "a stream is running");
    drop((stream, flight, health));
    tokio::time::timeout(Duration::from_secs(60), drained).await.unwrap().unwrap();
}

#[test]
fn probes_over_the_http_port_are_answered_while_all_io_threads_are_blocked() {
    let folder = tempfile::tempdir().unwrap();
    let io_threads =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let settings = Settings {
        cache_dir: folder.path().join("cache"),
        grpc: "127.0.0.1:0".parse().unwrap(),
        http: "127.0.0.1:0".parse().unwrap(),
        ..Settings::default()
    };
    let server = io_threads.block_on(Server::start(settings)).unwrap();
    let http = server.http().to_string();
    // The only I/O thread is blocked until the end of the test.
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let (began, has_begun) = std::sync::mpsc::channel();
    io_threads.spawn(async move {
        began.send(()).unwrap();
        blocked.recv().ok();
    });
    has_begun.recv().unwrap();
    for (path, expected) in [("/livez", "200 OK"), ("/readyz", "HTTP/1.0 "), ("/livez", "200 OK")] {
        let mut stream = TcpStream::connect(&http).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: {http}\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains(expected), "{answer}");
    }
    drop(unblock);
    io_threads.block_on(server.drain());
}
