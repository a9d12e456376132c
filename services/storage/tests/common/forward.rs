//! Methods of stores that tests wrap.

/// Methods of an [`ObjectStore`](object_store::ObjectStore) that write to the field `inner`, without a change.
macro_rules! forward_writes {
    () => {
        fn put_opts<'a, 'b, 'c>(
            &'a self,
            location: &'b Path,
            payload: PutPayload,
            options: PutOptions,
        ) -> Answer<'c, PutResult>
        where
            'a: 'c,
            'b: 'c,
        {
            self.inner.put_opts(location, payload, options)
        }

        fn put_multipart_opts<'a, 'b, 'c>(
            &'a self,
            location: &'b Path,
            options: PutMultipartOptions,
        ) -> Answer<'c, Box<dyn MultipartUpload>>
        where
            'a: 'c,
            'b: 'c,
        {
            self.inner.put_multipart_opts(location, options)
        }

        fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
            self.inner.delete_stream(paths)
        }

        fn copy_opts<'a, 'b, 'c, 'd>(
            &'a self,
            from: &'b Path,
            to: &'c Path,
            options: CopyOptions,
        ) -> Answer<'d, ()>
        where
            'a: 'd,
            'b: 'd,
            'c: 'd,
        {
            self.inner.copy_opts(from, to, options)
        }
    };
}

pub(crate) use forward_writes;
