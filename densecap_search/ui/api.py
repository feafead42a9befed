"""The page's routes, which are the JSON API: search, similar, window, index, health, pictures, export,
feedback, captions, lesson, review."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import Receive

from densecap_search import __version__
from densecap_search.collection.corrections import corrections_file
from densecap_search.collection.records import Skipped
from densecap_search.embedding.content import default_workers
from densecap_search.errors import DensecapError
from densecap_search.retrieval.explain import own_parts
from densecap_search.retrieval.queries import Query, count_sentences
from densecap_search.retrieval.searcher import Narrowed
from densecap_search.retrieval.strength import Strength
from densecap_search.ui import export, finding
from densecap_search.ui.batching import Batcher, Busy
from densecap_search.ui.gallery import Gallery
from densecap_search.ui.learning import Learning, Stage
from densecap_search.ui.live import LiveIndex, Shown
from densecap_search.ui.reviewing import Reviewing
from densecap_search.ui.reviewing import Stage as ReviewStage
from densecap_search.ui.reviewing import sentence as reviewed
from densecap_search.ui.teaching import Teaching

BESIDE = "/beside"  # before the routes of an index that is compared with
PICTURE_BYTES, JSON_BYTES = 32 << 20, 4 << 20  # bodies: a picture to search by, anything else
MOST_PAGE, MOST_BASKET = 200, 5_000
MOST_CAPTION = 100_000  # letters of a caption that is corrected
LOOK_SECONDS = 2.0  # between two looks whether the index has a new generation
MOST_COPIES = 200  # pictures that may wait to be made small
STATIC = Path(__file__).parent / "static"
T = TypeVar("T")


Text = Annotated[str, Field(max_length=finding.MOST_LETTERS)]
PictureName = Annotated[str, Field(max_length=80)]


class Described(BaseModel):
    """A caption, with further texts beside it."""

    model_config = ConfigDict(extra="forbid")
    caption: str = Field("", description="what is to be seen; as long as you like, up to 20,000 letters")
    also: list[tuple[Annotated[float, Field(ge=-100, le=100)], Text]] = Field(
        default_factory=list, max_length=20, description="further texts with their weights, beside the caption's 1")
    without: list[Text] = Field(default_factory=list, max_length=20, description="what should not be on the picture")

    def query(self) -> Query:
        """As the searcher takes it."""
        return Query(self.caption, also=tuple(self.also), without=tuple(self.without))


class SearchRequest(Described):
    """A caption, conditions, or both, and which ranks of the hits are wanted."""

    sentences: list[Annotated[int, Field(ge=0, le=9)]] = Field(
        default_factory=list, max_length=1_000, description="how often each sentence of the caption counts: 0 not at "
        "all, 1 as part of it, 2 once more beside it; those that are not named count once")
    like: list[PictureName] = Field(default_factory=list, max_length=20, description="pictures of the index, by the "
                                    "`picture` of a hit, that it should look like")
    unlike: list[PictureName] = Field(default_factory=list, max_length=20, description="and that it should not")
    picture: Base64Bytes | None = Field(None, description="another picture that it should look like, of at most 3 MB; "
                                        "for a larger one alone there is /api/similar")
    count: int = Field(24, ge=1, le=MOST_PAGE, description="hits that are returned")
    offset: int = Field(0, ge=0, le=finding.MOST_HITS, description="hits that are passed over")
    mode: Literal["auto", "image", "text", "words", "fused"] = Field("auto", description="what is compared: pictures, "
                                                                     "captions by meaning or by words, all together")
    must: list[Annotated[str, Field(max_length=1_000)]] = Field(
        default_factory=list, max_length=20, description="words that occur in a caption or the file name, those of an "
        "item one after the other")
    where: str | None = Field(None, max_length=2_000, description="a filter, such as: year >= 1990 and place = 'Lyon'")
    others: bool = Field(False, description="with `like`: not those pictures themselves, nor what is nearly the same")
    stacks: bool = Field(False, description="whether bursts and near-duplicates lie under the best of them; count and "
                         "offset then count stacks")
    min_score: float | None = Field(None, allow_inf_nan=False, description="the least cosine of a hit")
    sort: Literal["score", "date"] = Field("score", description="date: the hits of an answer, newest first")

    def asked(self) -> finding.Query:
        """As it is answered."""
        near = (*((1.0, name) for name in self.like), *((-1.0, name) for name in self.unlike))
        narrowed = Narrowed(self.where, tuple(self.must), self.min_score, self.others)
        asked = count_sentences(self.query(), self.sentences)
        return finding.check_asked(finding.Query(self.offset + self.count, asked, near, self.picture or b"", self.mode,
                                                 narrowed, self.stacks, self.sort))


class ExplainRequest(Described):
    """A query, and pictures of the index that it found, by the `picture` of each hit."""

    pictures: list[PictureName] = Field(max_length=MOST_PAGE)


class CaptionRequest(BaseModel):
    """A caption."""

    model_config = ConfigDict(extra="forbid")
    caption: str = Field(max_length=finding.MOST_LETTERS)


class FoundPicture(BaseModel):
    """A hit. score: cosine; match: where captions were searched too, how far it stands above the mean of all pictures,
    in spreads; by: what says most for it; strength: how sure that is; picture: for
    /pictures/{picture}/small, large or original, /api/similar; under: where stacks are asked for, further hits that are
    nearly the same picture.
    """

    rank: int
    score: float | None
    match: float | None
    by: Literal["image", "text", "words"] | None
    strength: Strength | None
    image_id: str
    name: str
    path: str
    caption: str
    picture: str
    missing: bool
    under: list[FoundPicture] = []


class SearchReply(BaseModel):
    """Hits, best first. total: pictures in the index; generation: of the index, as its folder names it; hints: what the
    caption says that a field would say better; note: what should be known of the caption, such as words that the model
    cannot read.
    """

    hits: list[FoundPicture]
    message: str
    note: str
    total: int
    generation: str
    hints: list[str]


class ExplainedPicture(BaseModel):
    """Of a hit: of each sentence, the share in percent of the archive's other pictures that it fits less well, or null
    where there is no other; and the stored caption in pieces, each with whether the query holds the word."""

    picture: str
    percentiles: list[float | None]
    caption: list[tuple[str, bool]]


class ExplainReply(BaseModel):
    """The sentences of the caption, in their order, which are the first ``own``, further texts after them; the hits."""

    sentences: list[str]
    own: int
    hits: list[ExplainedPicture]


class HeatRequest(BaseModel):
    """A picture of the index, by the `picture` of a hit, and a sentence."""

    model_config = ConfigDict(extra="forbid")
    picture: PictureName
    text: str = Field(min_length=1, max_length=finding.MOST_LETTERS)


class HeatReply(BaseModel):
    """values: of each row of the picture's parts, from 0, where the sentence fits least, to 1; box: left, top, right,
    bottom of what they cover, in shares of the picture. Both are null where that cannot be told; reason says why."""

    values: list[list[float]] | None = None
    box: tuple[float, float, float, float] | None = None
    reason: str = ""


class WindowReply(BaseModel):
    """How the text tower reads a caption. end: letters of it that are read, if it is cut; segments: if it is split."""

    words: int
    tokens: int
    context_length: int
    end: int | None
    segments: int


class IndexReply(BaseModel):
    """What is searched, and by which model. edit: whether answers to searches are kept; beside: whether another index
    is there to compare with, at /beside/api/search and so on."""

    name: str
    pictures: int
    model: str
    context_length: int
    generation: str
    examples: list[str]
    paths: bool
    problem: str
    edit: bool
    beside: bool


class HealthReply(BaseModel):
    """status is "ok", or "stale" where the index has a newer generation that cannot be read."""

    status: Literal["ok", "stale"]
    pictures: int
    generation: str
    in_flight: int
    version: str


class BasketItem(BaseModel):
    """A picture that was kept, and the query that found it."""

    model_config = ConfigDict(extra="forbid")
    picture: str = Field(max_length=80)
    score: float | None = None
    query: str = Field("", max_length=finding.MOST_LETTERS)


class BasketRequest(BaseModel):
    """Pictures to export."""

    model_config = ConfigDict(extra="forbid")
    items: list[BasketItem] = Field(max_length=MOST_BASKET)


class AnswerRequest(BaseModel):
    """What somebody says of the hits of a caption: this picture is the one, none of them is, or neither after all."""

    model_config = ConfigDict(extra="forbid")
    caption: str = Field(min_length=1, max_length=finding.MOST_LETTERS)
    answer: Literal["this", "none", "undo"]
    picture: str | None = Field(None, max_length=80)
    rank: int | None = Field(None, ge=1, le=finding.MOST_HITS)
    hits: int = Field(0, ge=0, le=finding.MOST_HITS, description="that were looked at")


class AnswerReply(BaseModel):
    """The name of the file, beside the index, in which the answer is kept now."""

    file: str


class CorrectionRequest(BaseModel):
    """What is to stand in place of a caption of a picture: before "" adds one, after "" takes one out."""

    model_config = ConfigDict(extra="forbid")
    picture: str = Field(max_length=80)
    before: str = Field(max_length=MOST_CAPTION)
    after: str = Field(max_length=MOST_CAPTION)


class CaptionsReply(BaseModel):
    """The captions of a picture, as they were corrected. file: which keeps the corrections, beside the index."""

    captions: list[str]
    file: str


class EmptyRequest(BaseModel):
    """Nothing: there is one of it at a time, of this index."""

    model_config = ConfigDict(extra="forbid")


class LessonFigure(BaseModel):
    """A figure of the held-out questions, text to image: percent, but MRR; low, high: the 95 % interval of the paired
    difference."""

    name: str
    before: float
    after: float
    low: float
    high: float


class LessonReply(BaseModel):
    """The lesson. train, held_out: questions that are learned from, and that are asked before and after; what, share,
    seconds: the step that runs, how much of it is done (0 to 1), and how long it all has taken; said: its last
    sentence; problem: why it did not come to its end; questions: that were asked; before, after: names of models.
    """

    stage: Stage
    train: int
    held_out: int
    what: str
    share: float | None
    seconds: float
    said: str
    problem: str
    questions: int
    figures: list[LessonFigure]
    doubt: str
    before: str
    after: str


class ReviewReply(BaseModel):
    """Captions that may not fit their pictures. what, share: the step that runs, and how much of it is done (0 to 1);
    message: what was found; problem: why nothing was."""

    stage: ReviewStage
    what: str
    share: float | None
    message: str
    problem: str


def most_bytes(path: str) -> int:
    """How large the body of a request to a path may be."""
    return PICTURE_BYTES if path.removeprefix(BESIDE) == "/api/similar" else JSON_BYTES


@dataclass
class Service:
    """What the routes share: the index, the queue of searches, the threads that make pictures small.

    teaching: what keeps the answers of people; None where nobody may give any. beside: another index, whose routes are
    the same below BESIDE.
    """

    live: LiveIndex
    paths: bool
    searches: Batcher[finding.Query, finding.Found]
    others: Batcher[Callable[[Shown], Any], Any]  # what is no search, one at a time
    copying: ThreadPoolExecutor
    teaching: Teaching | None = None
    learning: Learning | None = None
    reviewing: Reviewing | None = None
    beside: Service | None = None
    copies_waiting: int = 0

    @classmethod
    def of(cls, live: LiveIndex, *, paths: bool, edit: bool = False) -> Service:
        """For an index; paths: whether whole paths may be seen; edit: whether answers to searches are kept."""
        searches: Batcher[finding.Query, finding.Found] = Batcher(lambda asked: finding.answer(live.shown, asked))
        others: Batcher[Callable[[Shown], Any], Any] = Batcher(lambda works: [work(live.shown) for work in works],
                                                               together=1)
        copying = ThreadPoolExecutor(default_workers(), thread_name_prefix="copies")
        return cls(live, paths, searches, others, copying, Teaching(live.folder) if edit else None,
                   Learning(live.folder) if edit else None, Reviewing(live.folder) if edit else None)

    async def hits(self, request: Request, query: finding.Query, offset: int) -> SearchReply:
        """The hits behind ``offset``, unless who asked goes away."""
        answered = await _unless_gone(request.receive, self.searches.ask(query))
        total = answered.shown.count
        return await asyncio.to_thread(lambda: self._reply(answered, offset, total, query.sort))

    def _reply(self, answered: finding.Found, offset: int, total: int, sort: str) -> SearchReply:
        hits = answered.hits[offset:]
        corrected = {} if self.teaching is None else {"captions": self.teaching.captions}
        cards = finding.cards(answered.shown.searcher.newest_first(hits) if sort == "date" else hits, answered.shown,
                              self.paths, **corrected)
        return SearchReply(hits=[FoundPicture(**card) for card in cards], total=total, hints=answered.hints,
                           message=finding.message(offset + 1, cards, total, sort), note=answered.note,
                           generation=answered.shown.generation)

    async def copied(self, work: Callable[[Gallery], T]) -> T:
        """Pictures are opened by a few threads; what waits for them is bounded, what is given up is not opened."""
        if self.copies_waiting >= MOST_COPIES:
            raise Busy(f"{MOST_COPIES} pictures are waiting to be opened; try again in a moment")
        gallery = Gallery.of(self.live.shown.index)
        self.copies_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.copying, work, gallery)
        finally:
            self.copies_waiting -= 1

    async def close(self) -> None:
        """The server ends."""
        self.searches.close()
        self.others.close()
        self.copying.shutdown(wait=False, cancel_futures=True)
        for begun in (self.learning, self.reviewing):
            if begun is not None:
                await asyncio.to_thread(begun.close)

    async def follow(self) -> None:
        """Take up new generations of the index, and tidy the copies after each."""
        while True:
            await asyncio.to_thread(self._tidy)
            while not await asyncio.to_thread(self.live.refresh):
                await asyncio.sleep(LOOK_SECONDS)

    def _tidy(self) -> None:
        index = self.live.shown.index
        Gallery.of(index).tidy(index)


def make_api(service: Service) -> FastAPI:
    """The application with all routes but the page's frame."""
    api = FastAPI(title="densecap search", version=__version__, docs_url=None, redoc_url=None,
                  openapi_url="/api/openapi.json", lifespan=_lifespan(service),
                  description="Search an index of pictures by long captions.")
    api.add_exception_handler(DensecapError, _sentence)
    api.add_exception_handler(RequestValidationError, _sentence)
    api.add_exception_handler(_GoneError, _sentence)
    api.add_exception_handler(HTTPException, _sentence)
    _add_searching(api, service)
    _add_about(api, service)
    _add_pictures(api, service)
    _add_teaching(api, service)
    _add_learning(api, service)
    _add_reviewing(api, service)
    if service.beside is not None:
        api.mount(BESIDE, make_api(service.beside))
    api.mount("/page", GZipMiddleware(StaticFiles(directory=STATIC)), name="page")
    return api


def _add_searching(api: FastAPI, service: Service) -> None:
    @api.post("/api/search", response_model=SearchReply, summary="Pictures that a caption describes")
    async def search(request: Request, body: SearchRequest) -> SearchReply:
        finding.check_filter(body.where, service.paths)
        return await service.hits(request, body.asked(), body.offset)

    @api.post("/api/explain", response_model=ExplainReply, summary="What each sentence of a query says of its hits")
    async def explain(request: Request, body: ExplainRequest) -> ExplainReply:
        query = finding.check_asked(finding.Query(0, body.query())).asked
        explained = await _unless_gone(request.receive, service.others.ask(
            lambda shown: finding.explained(shown, query, body.pictures)))
        return ExplainReply(sentences=list(explained.parts), own=own_parts(query), hits=[
            ExplainedPicture(picture=name, percentiles=list(shares), caption=list(caption)) for name, shares, caption
            in zip(body.pictures, explained.percentiles, explained.captions, strict=True)])

    @api.post("/api/heat", response_model=HeatReply, summary="Where in a picture a sentence fits")
    async def where_it_fits(request: Request, body: HeatRequest) -> HeatReply:
        explained = await _unless_gone(request.receive, service.others.ask(
            lambda shown: finding.heated(shown, body.picture, body.text)))
        if isinstance(explained, str):
            return HeatReply(reason=explained)
        return HeatReply(values=np.round(explained.values, 3).tolist(), box=explained.box)

    @api.get("/api/similar", response_model=SearchReply, summary="Pictures that look like one of the index")
    async def similar(request: Request, picture: str, count: Annotated[int, Field(ge=1, le=MOST_PAGE)] = 24,
                      offset: Annotated[int, Field(ge=0, le=finding.MOST_HITS)] = 0) -> SearchReply:
        query = finding.Query(offset + count, near=((1.0, picture),), mode="image")
        return await service.hits(request, query, offset)

    @api.post("/api/similar", response_model=SearchReply, summary="Pictures that look like the one in the body",
              openapi_extra={"requestBody": {"required": True, "content": {
                  "image/*": {"schema": {"type": "string", "format": "binary"}}}}})
    async def similar_to_upload(request: Request, count: Annotated[int, Field(ge=1, le=MOST_PAGE)] = 24,
                                offset: Annotated[int, Field(ge=0, le=finding.MOST_HITS)] = 0) -> SearchReply:
        picture = await request.body()
        if not picture:
            raise DensecapError("send the picture as the body of the request")
        return await service.hits(request, finding.Query(offset + count, picture=picture, mode="image"), offset)

    @api.post("/api/window", response_model=WindowReply, summary="How much of a caption the model reads")
    async def window(body: CaptionRequest) -> WindowReply:
        encoder = service.live.shown.searcher.encoder
        return WindowReply(**asdict(await asyncio.to_thread(finding.reading, encoder, body.caption)))


def _add_about(api: FastAPI, service: Service) -> None:
    @api.get("/api/index", response_model=IndexReply, summary="What is searched")
    async def about() -> IndexReply:
        shown = service.live.shown
        encoder = shown.searcher.encoder
        return IndexReply(
            name=service.live.folder.resolve().name, pictures=shown.count, model=shown.model,
            context_length=encoder.context_length, generation=shown.generation, examples=list(shown.examples),
            paths=service.paths, problem=service.live.problem, edit=service.teaching is not None,
            beside=service.beside is not None,
        )

    @api.get("/api/health", response_model=HealthReply, summary="Whether searches are answered")
    async def health() -> HealthReply:
        shown = service.live.shown
        return HealthReply(status="stale" if service.live.problem else "ok", pictures=shown.count,
                           generation=shown.generation, in_flight=service.searches.in_flight, version=__version__)


def _add_pictures(api: FastAPI, service: Service) -> None:
    @api.get("/pictures/{picture}/{size}", response_class=FileResponse, summary="A picture of the index")
    async def picture(request: Request, picture: str, size: Literal["small", "large", "original"]) -> Response:
        row = service.live.shown.row(picture)
        if row is None:
            return _refused(404, "the index has no such picture")
        kind = "image/jpeg"
        if size == "original":
            original = await _unless_gone(request.receive, service.copied(lambda gallery: gallery.original(row)))
            path, kind = (original, "") if isinstance(original, Skipped) else original
        else:
            path = await _unless_gone(request.receive, service.copied(lambda gallery: gallery.copy(row, size)))
        if isinstance(path, Skipped):
            return _refused(404, path.reason)
        # its address is its content, so it never changes; where one must log in it is nobody else's
        return FileResponse(path, media_type=kind, headers={"cache-control": "private, max-age=31536000, immutable"})

    @api.post("/api/export", response_class=Response, summary="A basket of pictures as a file")
    async def exported(body: BasketRequest, format: Literal["csv", "jsonl", "zip", "html"] = "csv") -> Response:
        shown, items = service.live.shown, [item.model_dump() for item in body.items]
        kept = await asyncio.to_thread(export.kept_rows, items, shown)
        table = export.table_of(kept, shown, service.paths)
        headers = {"content-disposition": f'attachment; filename="pictures.{format}"'}
        if format in ("zip", "html"):
            written = export.as_zip if format == "zip" else export.as_sheet
            parts = written(table, [row for _, row in kept], Gallery.of(shown.index))
            return StreamingResponse(parts, media_type=export.FORMATS[format], headers=headers)
        text = export.as_csv(table) if format == "csv" else export.as_jsonl(table)
        return Response(text.encode("utf-8", "backslashreplace"), media_type=export.FORMATS[format], headers=headers)


def _add_teaching(api: FastAPI, service: Service) -> None:
    @api.post("/api/feedback", response_model=AnswerReply, summary="Keep what somebody says of the hits",
              dependencies=[Depends(_written_as_json)])
    async def feedback(body: AnswerRequest) -> AnswerReply:
        teaching = _teaching_of(service)
        await asyncio.to_thread(teaching.keep, service.live.shown, body.caption, body.answer, body.picture, body.rank,
                                body.hits)
        return AnswerReply(file=teaching.feedback.name)


    @api.get("/api/captions", response_model=CaptionsReply, summary="The captions of a picture, one by one")
    async def captions(picture: str) -> CaptionsReply:
        return await asyncio.to_thread(_captions, service, picture)

    @api.post("/api/captions", response_model=CaptionsReply, summary="Correct a caption of a picture",
              dependencies=[Depends(_written_as_json)])
    async def correct(body: CorrectionRequest) -> CaptionsReply:
        return await asyncio.to_thread(_captions, service, body.picture, body.before, body.after)


def _captions(service: Service, picture: str, *correction: str) -> CaptionsReply:
    teaching, row = _teaching_of(service), service.live.shown.row(picture)
    if row is None:
        raise DensecapError("the index has no such picture; search again")
    now = teaching.correct(row, *correction) if correction else teaching.captions(row)
    return CaptionsReply(captions=list(now), file=corrections_file(teaching.folder).name)


def _add_learning(api: FastAPI, service: Service) -> None:
    @api.get("/api/lesson", response_model=LessonReply, summary="How the lesson stands")
    async def lesson() -> LessonReply:
        return await asyncio.to_thread(_lesson, _learning_of(service))

    @api.post("/api/lesson/{step}", response_model=LessonReply, dependencies=[Depends(_written_as_json)],
              summary="Begin a lesson, stop it, take its model as a new generation of the index, or throw it away")
    async def judge(step: Literal["start", "cancel", "take", "discard"], body: EmptyRequest) -> LessonReply:
        learning = _learning_of(service)
        await asyncio.to_thread(getattr(learning, step))
        return await asyncio.to_thread(_lesson, learning)


def _add_reviewing(api: FastAPI, service: Service) -> None:
    @api.get("/api/review", response_model=ReviewReply, summary="How the review of the captions stands")
    async def state() -> ReviewReply:
        return _review(_reviewing_of(service))

    @api.post("/api/review", response_model=ReviewReply, dependencies=[Depends(_written_as_json)],
              summary="Begin to look for captions that do not fit their pictures")
    async def begin(body: EmptyRequest) -> ReviewReply:
        reviewing = _reviewing_of(service)
        await asyncio.to_thread(reviewing.start)
        return _review(reviewing)

    @api.get("/api/review/pairs", response_model=SearchReply, summary="Captions that fit their pictures least")
    async def pairs(count: Annotated[int, Field(ge=1, le=MOST_PAGE)] = 24,
                    offset: Annotated[int, Field(ge=0, le=finding.MOST_HITS)] = 0) -> SearchReply:
        reviewing = _reviewing_of(service)
        return await asyncio.to_thread(_pairs, service, reviewing, offset, count)


def _review(reviewing: Reviewing) -> ReviewReply:
    work, found = reviewing.work, reviewing.found
    return ReviewReply(stage=reviewing.stage, what=work.what if work else "", share=work.share if work else None,
                       message=reviewed(found) if found else "", problem=reviewing.problem)


def _pairs(service: Service, reviewing: Reviewing, offset: int, count: int) -> SearchReply:
    shown = service.live.shown
    hits = reviewing.hits(shown)
    wanted = hits[offset:offset + count]
    cards = [{**card, "caption": hit.caption} for hit, card in
             zip(wanted, finding.cards(wanted, shown, service.paths), strict=True)]
    assert reviewing.found is not None
    return SearchReply(hits=[FoundPicture(**card) for card in cards], total=len(hits), hints=[], note="",
                       message=reviewed(reviewing.found), generation=shown.generation)


def _reviewing_of(service: Service) -> Reviewing:
    _teaching_of(service)
    assert service.reviewing is not None
    return service.reviewing


def _lesson(learning: Learning) -> LessonReply:
    work, learned, answers = learning.work, learning.lesson, learning.answers()
    figures = learned.figures.items() if learned else ()
    return LessonReply(
        stage=learning.stage, train=answers.train, held_out=answers.held_out, what=work.what if work else "",
        share=work.share if work else None, seconds=round(work.running_seconds(), 1) if work else 0,
        said=work.said if work else "", problem=learning.problem, questions=learned.questions if learned else 0,
        figures=[LessonFigure(name=name, **asdict(change)) for name, change in figures],
        doubt=learned.doubt if learned else "", before=learned.before if learned else "",
        after=learned.run.name if learned else "")


def _learning_of(service: Service) -> Learning:
    _teaching_of(service)
    assert service.learning is not None
    return service.learning


def _teaching_of(service: Service) -> Teaching:
    if service.teaching is None:
        raise _ClosedError("nothing is kept here; densecap serve --edit lets people teach")
    return service.teaching


async def _written_as_json(request: Request) -> None:
    """What other pages can have a browser send without asking first is no JSON."""
    if not request.headers.get("content-type", "").lower().startswith("application/json"):
        raise DensecapError("send JSON, as content-type application/json")


class _ClosedError(DensecapError):
    """What this server does not do."""


class _GoneError(Exception):
    """Who asked went away before the answer."""


async def _unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """What work gives, unless the client goes away first: then work is cancelled."""
    asked = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            raise _GoneError
        return asked.result()
    finally:
        gone.cancel()
        asked.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _lifespan(service: Service) -> Callable[[FastAPI], Any]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        running = [one for one in (service, service.beside) if one is not None]  # a mounted application is not told
        following = [asyncio.create_task(one.follow()) for one in running]
        yield
        for task, one in zip(following, running, strict=True):
            task.cancel()
            await one.close()

    return lifespan


async def _sentence(_: Request, error: Exception) -> Response:
    """What is wrong with a request, in the form of every answer that is none."""
    if isinstance(error, _GoneError):
        return PlainTextResponse("", 499)
    if isinstance(error, Busy):
        return _refused(503, str(error), {"retry-after": "1"})
    if isinstance(error, HTTPException):  # of the framework: no such route, a body that is no JSON at all
        return _refused(error.status_code, str(error.detail), error.headers)
    if isinstance(error, RequestValidationError):
        return _refused(422, "; ".join(_told(one) for one in error.errors()[:3]))
    return _refused(403 if isinstance(error, _ClosedError) else 422, str(error))


def _told(error: Mapping[str, Any]) -> str:
    where: Sequence[Any] = error["loc"]
    return f"{'.'.join(str(part) for part in where if part not in ('body', 'query'))}: {error['msg']}"[:300]


def _refused(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": sentence}, status, headers=dict(headers or {}))
