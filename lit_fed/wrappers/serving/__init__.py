"""Fine-tuning of the models that serve each client, around any algorithm that serves clients by models."""
