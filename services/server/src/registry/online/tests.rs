use forebay_loader::Pool;
use forebay_storage::{Location, State};

use super::*;
use crate::auth::test_access;

#[tokio::test]
async fn the_work_of_a_lookup_belongs_to_the_tenant_of_its_token() {
    let folder = tempfile::tempdir().unwrap();
    let access = test_access::of_weight(3);
    let mut settings = Settings { cache_dir: folder.path().to_owned(), ..Settings::default() };
    settings.add_online(&["users=id".to_owned(), "items=id".to_owned()]).unwrap();
    let location = Location::parse(&settings.state_url(), &settings.storage).unwrap();
    let state = State::open(location, None, &settings.storage);
    let events = Events::new(1);
    let pool = || Pool::simulated(1, || Duration::ZERO);
    let datasets = Datasets::new(&settings, state, &pool(), events.clone()).unwrap();
    let loader = Loader::new(1 << 20, settings.loader.clone(), pool());
    let online = OnlineDatasets::new(&settings, &loader, &(pool(), pool()), events);

    let part = |dataset: &str| v1::Lookup { dataset: dataset.to_owned(), ..v1::Lookup::default() };
    let wanted = v1::Lookup { joins: vec![part("items")], ..part("users") };
    let lookup = online.lookup(&datasets, &access, &wanted).await.unwrap();
    assert_eq!(lookup.tenant(), access.tenant());
    assert_eq!(lookup.tenant().weight().get(), 3);
}
