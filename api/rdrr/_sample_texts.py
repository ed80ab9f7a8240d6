"""Sentences on which embeddings are compared, in several languages and scripts."""

from __future__ import annotations

import random
from collections.abc import Iterator

SENTENCES = (
    "The ferry to the island leaves twice a day in summer.",
    "Boats cross to the island every morning and evening.",
    "She planted tomatoes, beans and a row of sunflowers behind the house.",
    "Our garden gives us vegetables from June until October.",
    "The train was cancelled because of snow on the line.",
    "Heavy snowfall stopped all traffic in the valley.",
    "How do I reset the password of my account?",
    "I cannot log in since I changed my password.",
    "Interest rates were left unchanged by the central bank.",
    "The bank raised its forecast for inflation next year.",
    "A prime number has exactly two divisors.",
    "Every even number greater than two may be a sum of two primes.",
    "The violinist tuned her instrument before the concert.",
    "An orchestra needs weeks to rehearse a symphony.",
    "Add the flour slowly and stir until the dough is smooth.",
    "Bake the bread for forty minutes and let it cool.",
    "The patient has had a fever for three days.",
    "Drink plenty of water and rest if you have a cold.",
    "Which languages are spoken in Switzerland?",
    "Der Zug nach Basel hat heute zwanzig Minuten Verspätung.",
    "Die Kinder spielen im Garten hinter dem alten Haus.",
    "Le marché ouvre chaque samedi sur la place de l'église.",
    "Où puis-je acheter un billet pour le musée ?",
    "El barco sale del puerto a las ocho de la mañana.",
    "La ricetta richiede tre uova e un po' di zucchero.",
    "Os preços do café subiram muito neste ano.",
    "Pociąg do Krakowa odjeżdża z drugiego peronu.",
    "Kaç dil konuşabiliyorsun ve hangilerini öğrenmek istiyorsun?",
    "Завтра в городе ожидается сильный дождь.",
    "Библиотека открыта каждый день, кроме понедельника.",
    "Το πλοίο φεύγει για το νησί στις επτά.",
    "הספרייה סגורה בשבת ובחגים.",
    "تفتح المكتبة أبوابها كل صباح.",
    "कल सुबह हम पहाड़ों की ओर निकलेंगे।",
    "ঢাকায় আজ প্রচুর বৃষ্টি হয়েছে।",
    "รถไฟขบวนนี้ไปเชียงใหม่หรือไม่",
    "Con tàu rời bến lúc sáu giờ sáng.",
    "明天早上八点从北京出发的火车已经满了。",
    "请问附近有没有图书馆？",
    "駅前の図書館は月曜日が休みです。",
    "この料理には卵が三つ必要です。",
    "내일 아침에 비가 올 것 같습니다.",
    "x = sorted(values, key=lambda value: -value)[:10]",
    "SELECT name, COUNT(*) FROM orders GROUP BY name;",
    "Invoice 2024-0187: 3 x 19.99 EUR, due on 31/12.",
    "🚀 Launch at 09:30 UTC — don’t be late!",
    "no",
    "",
)
"""The sentences; the last one is empty."""


def sample_texts(count: int) -> Iterator[str]:
    """Yield texts: the sentences first, then texts of several of them, from short to very long.

    Args:
        count: Number of texts.
    """
    yield from SENTENCES[:count]
    chosen = random.Random(0)
    for _ in range(count - len(SENTENCES)):
        # Half of the texts are a sentence or two, one in fifty is longer than 512 tokens.
        parts = int(min(chosen.paretovariate(1.0), 80.0))
        yield " ".join(chosen.choices(SENTENCES, k=parts))
