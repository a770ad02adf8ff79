"""SGLang's engine: its scheduling loop, admission, retraction and memory."""
