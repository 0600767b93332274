"""A standard pre-norm transformer block with frustrated synchronization where attention was, trained with AMP."""

import torch
from torch import nn

import fsn


class Block(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = fsn.FrustratedAttention(width, heads)  # was nn.MultiheadAttention
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def main(steps: int = 200, device: str = "cuda" if torch.cuda.is_available() else "cpu") -> float:
    text = torch.frombuffer(bytearray(open(__file__, "rb").read()), dtype=torch.uint8).long().to(device)  # noqa: SIM115
    model = nn.Sequential(nn.Embedding(256, 64), Block(), Block(), nn.LayerNorm(64), nn.Linear(64, 256))
    optimizer = torch.optim.AdamW(model.to(device).parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        rows = text[torch.randint(len(text) - 65, (16, 1), device=device) + torch.arange(65, device=device)]
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(rows[:, :-1]).mT, rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        print(f"step {step:3d}: {loss:.2f} nats")
    return loss.item()


if __name__ == "__main__":
    main()
