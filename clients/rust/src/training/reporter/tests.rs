use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::Arc,
    task::{Context, Poll},
};

use arrow_schema::Schema;
use forebay_proto::v1::{PlanSummary, Train};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, body::Body, server::NamedService};

use super::*;
use crate::{Config, Plan, route::Servers};

/// A Flight server that rejects the first two calls because of their token.
#[derive(Clone)]
struct Rejecting {
    /// Number of calls.
    calls: Arc<watch::Sender<u32>>,
}

impl NamedService for Rejecting {
    const NAME: &'static str = "arrow.flight.protocol.FlightService";
}

impl tower::Service<http::Request<Body>> for Rejecting {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        let mut code = Code::Ok;
        self.calls.send_modify(|calls| {
            *calls += 1;
            code = if *calls <= 2 { Code::Unauthenticated } else { Code::Ok };
        });
        let response = http::Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", code as i32)
            .body(Body::empty());
        ready(Ok(response.unwrap()))
    }
}

#[tokio::test]
async fn reports_continue_after_the_server_has_rejected_the_token() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (calls, mut seen) = watch::channel(0);
    let serving = tonic::transport::Server::builder()
        .add_service(Rejecting { calls: Arc::new(calls) })
        .serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener));
    let _serving = AbortOnDropHandle::new(tokio::spawn(serving));
    let plan = Plan {
        locations: Vec::new(),
        schema: Arc::new(Schema::empty()),
        summary: PlanSummary::default(),
        total_records: 0,
        tickets: Vec::new(),
        resolved: Train { dataset: "flights".into(), ..Train::default() },
    };
    let servers = Servers::new(&[url], Config::default()).unwrap();
    let _reporting = AbortOnDropHandle::new(tokio::spawn(report(Job::new(&servers, plan))));
    // The pauses after the rejections are 2 s and 4 s; later reports follow after 1 s.
    let accepted = seen.wait_for(|calls| *calls >= 4);
    tokio::time::timeout(Duration::from_secs(60), accepted).await.unwrap().unwrap();
}
