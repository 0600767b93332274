"""A standard pre-norm transformer block with frustrated synchronization where attention was, trained with AMP."""

import torch
from torch import nn

import fsn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = fsn.FrustratedAttention(width, heads)  # was nn.MultiheadAttention
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def main(steps: int = 200, device: str = "cuda" if torch.cuda.is_available() else "cpu") -> list[float]:
    text = torch.frombuffer(bytearray(open(__file__, "rb").read()), dtype=torch.uint8).long().to(device)  # noqa: SIM115
    blocks = [Block(64, heads=4) for _ in range(2)]
    model = nn.Sequential(nn.Embedding(256, 64), *blocks, nn.LayerNorm(64), nn.Linear(64, 256)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for step in range(steps):
        rows = text[torch.randint(len(text) - 65, (16, 1), device=device) + torch.arange(65, device=device)]
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(), schedule.step(), losses.append(loss.item())
        if step % 20 == 0:
            print(f"step {step:3d}: {losses[-1]:.2f} nats", flush=True)
    return losses


if __name__ == "__main__":
    main()
