"""Makes the sample checkpoints: real PyTorch and safetensors write them and read them back for the goldens."""
